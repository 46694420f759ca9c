/** The machine that runs a device in Node; see Host in ../device/profile.js. Bytes. */
import os from "node:os";

/** Bytes that 32-bit WASM can address. */
const WASM_BYTES = 2 ** 32;

/** @param {string} name of the device @returns {import("../device/profile.js").Host} */
export function nodeHost(name) {
  const residentBytes = () => process.memoryUsage.rss();
  const most = () => Math.min(process.constrainedMemory?.() || Infinity, os.totalmem());
  return {
    name,
    cores: os.availableParallelism(),
    totalBytes: most(),
    limitBytes: () => Math.min(most(), residentBytes() + Math.min(WASM_BYTES, os.freemem())),
    residentBytes,
  };
}
