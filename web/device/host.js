/** The browser that runs a device, as far as it tells; see Host in profile.js. Bytes. */

/** Memory that is assumed if the browser does not tell. */
const UNKNOWN_BYTES = 2 ** 31;
/** Bytes that 32-bit WASM can address. */
const WASM_BYTES = 2 ** 32;
/** Share of the device's memory that one page may take without being ended by the browser. */
const SHARE = 0.25;
/** Bytes that an idle worker with ONNX Runtime holds; browsers do not tell. */
const IDLE_BYTES = 80e6;

/**
 * `battery` gives the present charge, {percent, plugged}, or null if it is not known.
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
