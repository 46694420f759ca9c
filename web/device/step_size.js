/** The unit of length of zeroth-order steps (strategies/directions/replaying.py). */

/** The smallest unit, for weights that are nearly 0. */
const SMALLEST = 2 ** -10;

/**
 * The unit of `eps` and `lr`: 1, or the root mean square of these tensors, rounded to a power of two, which is the same
 * for devices that differ in a last bit.
 * @param {import("./flat.js").Tensors} weights
 * @param {import("./flat.js").TensorSpec[]} specs
 * @param {"absolute" | "relative"} sizing
 * @returns {number}
 */
export function unit(weights, specs, sizing) {
  if (sizing === "absolute") return 1;
  let [total, count] = [0, 0];
  for (const { name } of specs) {
    const { data } = /** @type {any} */ (weights.get(name));
    for (const value of data) total += value * value;
    count += data.length;
  }
  const size = Math.max(SMALLEST, Math.sqrt(total / Math.max(1, count)));
  const above = 2 ** (Math.floor(Math.log2(size)) + 1);
  const [mantissa, whole] = size / above >= 1 ? [size / above / 2, above * 2] : [size / above, above];
  return mantissa > Math.SQRT1_2 ? whole : whole / 2;
}
