/** Writes numbers for people. */

export const count = (value) => value.toLocaleString("en");
export const percent = (share) => `${Math.round(100 * share)}\u00a0%`;

/** @param {number} value @param {string} one @param {string} [many] */
export const plural = (value, single, many = `${single}s`) => `${count(value)} ${value === 1 ? single : many}`;

export function bytes(value) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= Number(size)) return `${Number((value / Number(size)).toPrecision(3))} ${unit}`;
  }
  return plural(Math.round(value), "byte");
}

export function seconds(value) {
  if (value >= 5400) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 100) return `${Math.round(value / 60)} min`;
  if (value >= 10) return `${Math.round(value)} s`;
  return value < 0.1 ? "less than 0.1 s" : `${value.toFixed(1)} s`;
}

/** Joules, and the share of a phone's battery (about 12 Wh) that they are. */
export function joules(value) {
  const share = value / 43_200;
  const energy = value >= 10 ? `${count(Math.round(value))} J` : value < 0.1 ? "less than 0.1 J" : `${value.toFixed(1)} J`;
  return share < 0.0005 ? energy : `${energy} (${(100 * share).toFixed(1)} % of a phone's battery)`;
}
