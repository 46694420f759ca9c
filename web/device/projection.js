/** A random projection of features, the same on every device. Part of strategies/statistics/class_sums.py. */

import { RADEMACHER, direction } from "./directions.js";
import { fill } from "./philox.js";

/** @typedef {{features: number, projection_seed: number}} Settings */

/** How many features there are after projecting. @param {number} width @param {Settings} settings */
export const projectedWidth = (width, { features }) => Math.min(width, features);

/**
 * Projects features: each is added, with a random sign, to one of `size` sums. `settings.features` features or fewer
 * are left as they are. @param {Float32Array} x (n, width) @param {number} width @param {Settings} settings
 * @returns {Float32Array} (n, size)
 */
export function project(x, width, settings) {
  const size = projectedWidth(width, settings);
  if (size === width) return x;
  const { order, signs } = drawn(width, BigInt(settings.projection_seed));
  const sums = new Float32Array((x.length / width) * size);
  for (let from = 0, to = 0; from < x.length; from += width, to += size) {
    order.forEach((feature, place) => (sums[to + (place % size)] += x[from + feature] * signs[feature]));
  }
  return sums;
}

/**
 * The features in the order in which they go to sums 0, 1, and so on, and their signs.
 * @param {number} width @param {bigint} seed
 */
function drawn(width, seed) {
  const halves = new Int32Array(8 * Math.ceil(width / 4));
  fill([seed, 0n], 1, halves);
  const word = (/** @type {number} */ at) => [halves[2 * at + 1] >>> 0, halves[2 * at] >>> 0];
  const order = Uint32Array.from({ length: width }, (_, at) => at).sort((a, b) => {
    const [[high, low], [high2, low2]] = [word(a), word(b)];
    return high - high2 || low - low2 || a - b;
  });
  return { order, signs: direction({ seed, index: 1n, generator: RADEMACHER }, 0, width) };
}
