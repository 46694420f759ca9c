/** Who is a straggler, as profiles/straggler.py: a property of device and task together. */

import { fixed } from "./rounding.js";

/** @typedef {import("./cost.js").Cost} Cost */
/** @typedef {import("./cost.js").Profile["memory"]} Memory */
/**
 * Whether a full update does not fit, and in what respect.
 * @typedef {{straggler: boolean, reasons: string[]}} Verdict
 */

/**
 * Judge the predicted cost of a *full* update against the deadline and the device's memory.
 * @param {Cost} full @param {Memory} memory @param {number} deadlineS @returns {Verdict}
 */
export function classify(full, memory, deadlineS) {
  const reasons = misfits(full, memory, deadlineS);
  return { straggler: reasons.length > 0, reasons };
}

/**
 * Why an update of this cost does not fit: the time, the memory, both, or (empty) neither.
 * @param {Cost} cost @param {Memory} memory @param {number} deadlineS @returns {string[]}
 */
export function misfits(cost, memory, deadlineS) {
  const reasons = [];
  if (cost.seconds > deadlineS) {
    const where = cost.seconds - cost.computeS > cost.computeS ? "link" : "compute";
    reasons.push(`needs ${fixed(cost.seconds, 1)} s of ${fixed(deadlineS, 1)} s (${where})`);
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
