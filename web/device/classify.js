/** Tells whether a device is a straggler: a property of device and task together. Part of profiles/cost.py. */

import { fixed } from "./rounding.js";

/** @typedef {import("./cost.js").Cost} Cost */
/** @typedef {import("./cost.js").Profile["memory"]} Memory */
/**
 * Whether a device is a straggler, and the reasons: time, memory or both; empty if it is not.
 * @typedef {{straggler: boolean, reasons: string[]}} StragglerVerdict
 */

/**
 * Compares the predicted cost of a *full* update with the deadline and the device's memory.
 * @param {Cost} full @param {Memory} memory @param {number} deadlineS @returns {StragglerVerdict}
 */
export function classify(full, memory, deadlineS) {
  const reasons = misfitReasons(full, memory, deadlineS);
  return { straggler: reasons.length > 0, reasons };
}

/**
 * The reasons why an update of this cost does not fit: time, memory, both; empty if it fits.
 * @param {Cost} cost @param {Memory} memory @param {number} deadlineS @returns {string[]}
 */
export function misfitReasons(cost, memory, deadlineS) {
  const reasons = [];
  if (cost.seconds > deadlineS) {
    const where = cost.seconds - cost.computeS > cost.computeS ? "on the link" : "to compute";
    reasons.push(`needs ${fixed(cost.seconds, 1)} s and has ${fixed(deadlineS, 1)} s (mostly ${where})`);
  }
  if (cost.peakMemoryBytes > memory.limitBytes) {
    reasons.push(`needs ${mb(cost.peakMemoryBytes)} MB of ${mb(memory.limitBytes)} MB`);
  }
  return reasons;
}

/** @param {number} size in bytes */
function mb(size) {
  return fixed(size / 1e6, 0);
}
