/** Numbers byte by byte: first all lowest bytes, last all highest, which are alike and pack well. */

/**
 * Of shape (bytes of a number, ...shape). @param {Uint16Array | Uint32Array} numbers @param {readonly number[]} shape
 */
export function split(numbers, shape) {
  const { length, BYTES_PER_ELEMENT: width } = numbers;
  const data = new Uint8Array(width * length);
  for (let plane = 0; plane < width; plane += 1) {
    for (let at = 0; at < length; at += 1) data[plane * length + at] = numbers[at] >>> (8 * plane);
  }
  return { dtype: "uint8", shape: [width, ...shape], data };
}
