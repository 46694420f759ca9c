/** The table of candidates, what each would cost, and why it was taken or not, as the command `explain`. */

import { fixed } from "./rounding.js";

/** @typedef {import("./choose.js").Plan} Plan */

export const HEADERS = ["", "kind", "seconds", "peak MB", "kB up", "kB down", "joule", "why"];

/**
 * One candidate, for people and programs.
 * @typedef {{kind: string, cost: import("./cost.js").Cost | null, taken: boolean, why: string}} Row
 */

/** @param {Plan} plan @returns {Row[]} in the order of preference */
export function rows(plan) {
  return plan.candidates.map((candidate) => {
    const { label: kind, cost } = candidate;
    const taken = candidate === plan.chosen;
    const fits = taken ? "chosen: the richest that fits" : "fits, but poorer than the chosen one";
    const why = candidate.misfits.length ? candidate.misfits : [fits, candidate.part].filter(Boolean);
    return { kind, cost, taken, why: why.join("; ") };
  });
}

/** Text under HEADERS. @param {Row} row @returns {string[]} */
export function cells({ kind, cost, taken, why }) {
  const mark = taken ? "->" : "";
  if (!cost) return [mark, kind, "", "", "", "", "", why];
  return [
    mark,
    kind,
    fixed(cost.seconds, 2),
    fixed(cost.peakMemoryBytes / 1e6, 0),
    fixed(cost.bytesUp / 1e3, 1),
    fixed(cost.bytesDown / 1e3, 1),
    fixed(cost.energyJ, 1),
    why,
  ];
}

/** In one sentence. @param {Plan} plan @returns {string} */
export function verdict({ chosen, straggler }) {
  if (!chosen) return "Nothing fits: this device would sit the round out.";
  if (!straggler.straggler) return `Not a straggler for this task; it sends ${chosen.label}.`;
  const reasons = straggler.reasons.join("; ");
  return `A straggler for this task (a full update ${reasons}); it sends ${chosen.label}.`;
}
