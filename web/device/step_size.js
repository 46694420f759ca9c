/** How far a zeroth-order step goes: the unit of length of its settings (strategies/directions/step_size.py). */

/** The unit of weights that are all 0, or nearly. */
const SMALLEST = 2 ** -10;

/**
 * What `eps` and `lr` are counted in: 1, or the root mean square of these tensors as a power of two, so that
 * those who differ in a last bit have the same.
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
