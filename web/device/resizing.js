// Resizes pictures. Part of models/data/pictures.py.

/**
 * Resizes the largest central part of the wanted proportions. Enlarging interpolates linearly between neighbours.
 * Reducing takes the mean of all pixels that are covered, with weights that fall linearly.
 * @param {ArrayLike<number>} pixels shape (height, width, channels)
 * @param {{height: number, width: number, channels: number}} from
 * @param {number} height
 * @param {number} width
 * @returns {Float32Array} shape (height, width, channels)
 */
export function resized(pixels, from, height, width) {
  const { height: rows, width: columns, channels } = from;
  if (rows === height && columns === width) return Float32Array.from(pixels);
  const tall = Math.min(rows, (columns * height) / width);
  const wide = Math.min(columns, (rows * width) / height);
  const upright = along(pixels, { count: rows, size: columns * channels }, tall, height);
  const turned = transposed(upright, height, columns, channels);
  const across = along(turned, { count: columns, size: height * channels }, wide, width);
  return transposed(across, width, height, channels);
}

/** Resizes the central `length` of lines (count, size) to `wanted` lines. */
function along(lines, { count, size }, length, target) {
  const step = length / target;
  const begin = (count - length) / 2;
  const reach = Math.max(step, 1);
  const output = new Float32Array(target * size);
  const sum = new Float64Array(size);
  for (let number = 0; number < target; number++) {
    const centre = begin + (number + 0.5) * step;
    const low = Math.max(0, Math.floor(centre - reach + 0.5));
    const high = Math.min(count, Math.floor(centre + reach + 0.5));
    const weights = [];
    for (let line = low; line < high; line++) weights.push(Math.max(0, 1 - Math.abs(line + 0.5 - centre) / reach));
    const total = weights.reduce((all, weight) => all + weight, 0);
    sum.fill(0);
    weights.forEach((weight, place) => {
      const share = Math.fround(weight / total);
      const offset = (low + place) * size;
      for (let i = 0; i < size; i++) sum[i] += share * lines[offset + i];
    });
    output.set(sum, number * size);
  }
  return output;
}

/** (rows, columns, channels) -> (columns, rows, channels) */
function transposed(values, rows, columns, channels) {
  const turned = new Float32Array(values.length);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      for (let c = 0; c < channels; c++) {
        turned[(column * rows + row) * channels + c] = values[(row * columns + column) * channels + c];
      }
    }
  }
  return turned;
}
