/** The table of candidates, their costs, and why each was chosen or not, as `device-runtime explain` shows it. */

/** @typedef {import("./choose.js").UpdateChoice} UpdateChoice */

/**
 * One candidate, as the page shows it.
 * @typedef {{kind: string, cost: import("./cost.js").Cost | null, taken: boolean, why: string}} Row
 */

/** @param {UpdateChoice} plan @returns {Row[]} in the order of preference */
export function rows(plan) {
  return plan.candidates.map((candidate) => {
    const { label: kind, cost } = candidate;
    const isChosen = candidate === plan.chosen;
    const fits = isChosen ? "chosen: the richest that fits" : "fits, but poorer than the chosen one";
    const why = candidate.misfits.length ? candidate.misfits : [fits, candidate.part].filter(Boolean);
    return { kind, cost, taken: isChosen, why: why.join("; ") };
  });
}

/** The plan in one sentence. @param {UpdateChoice} plan @returns {string} */
export function verdict({ chosen, straggler }) {
  if (!chosen) return "Nothing fits: this device would sit the round out.";
  if (!straggler.straggler) return `Not a straggler for this task; it sends ${chosen.label}.`;
  const reasons = straggler.reasons.join("; ");
  return `A straggler for this task (a full update ${reasons}); it sends ${chosen.label}.`;
}
