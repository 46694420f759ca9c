/** The browser that a device is in, as far as it says; see Host in profile.js. Bytes. */

/** Memory of a browser that does not say how much there is. */
const UNKNOWN_BYTES = 2 ** 31;
/** What WASM of 32 bits can address. */
const WASM_BYTES = 2 ** 32;
/** Of the device's memory, what one page may take without being thrown out. */
const SHARE = 0.25;
/** What a worker with the runtime loaded holds, idle, where the browser does not say. */
const IDLE_BYTES = 80e6;

/**
 * `battery` is asked each time: {percent, plugged}, or null where nobody says.
 * @param {string} name of the device @param {any} navigator
 * @param {() => {percent: number, plugged: boolean} | null} [battery] @returns {import("./profile.js").Host}
 */
export function browserHost(name, navigator, battery = () => null) {
  const totalBytes = navigator.deviceMemory ? navigator.deviceMemory * 2 ** 30 : UNKNOWN_BYTES;
  return {
    name,
    cores: navigator.hardwareConcurrency ?? 1,
    totalBytes,
    limitBytes: () => Math.min(WASM_BYTES, SHARE * totalBytes),
    residentBytes: () => IDLE_BYTES,
    battery,
  };
}
