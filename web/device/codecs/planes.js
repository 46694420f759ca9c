/** Splits numbers into byte planes. High bytes are alike, so they pack well. Part of strategies/codecs/codec.py. */

/**
 * The numbers as byte planes (bytes of a number, ...shape), the lowest bytes first.
 * @param {Uint16Array | Uint32Array} numbers @param {readonly number[]} shape
 */
export function splitPlanes(numbers, shape) {
  const { length, BYTES_PER_ELEMENT: width } = numbers;
  const data = new Uint8Array(width * length);
  for (let plane = 0; plane < width; plane += 1) {
    for (let at = 0; at < length; at += 1) data[plane * length + at] = numbers[at] >>> (8 * plane);
  }
  return { dtype: "uint8", shape: [width, ...shape], data };
}
