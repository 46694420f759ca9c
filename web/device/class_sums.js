/** Sums of features by class, and the encoding of class means (strategies/statistics/class_sums.py). */

import { TensorError } from "./errors.js";
import { fromHalf, toHalf } from "./half.js";
import { whole } from "./rounding.js";

/** @typedef {{width: number, counts: Int32Array, sums: Map<number, Float64Array>}} ClassSums */

/** Bytes of a row before its mean: label, count and scale. */
const BEGIN = 10;
/** Bytes of a mean's numbers, by the setting `numbers`. @type {Record<string, number>} */
const NUMBERS = { int8: 1, float16: 2 };

/**
 * The sums of features x (n, width) by class, in float64, and the counts, of classes that have `smallest` samples or
 * more. @param {{x: any, y: Int32Array}} data @param {number} width @param {number} labels
 * @param {number} smallest @returns {ClassSums}
 */
export function sumByClass({ x, y }, width, labels, smallest) {
  const counts = new Int32Array(labels);
  for (const label of y) counts[label] += 1;
  counts.forEach((count, label) => (counts[label] = count < smallest ? 0 : count));
  /** @type {Map<number, Float64Array>} */
  const sums = new Map();
  counts.forEach((count, label) => count && sums.set(label, new Float64Array(width)));
  y.forEach((label, row) => {
    const sum = sums.get(label);
    if (sum) for (let i = 0; i < width; i += 1) sum[i] += x[row * width + i];
  });
  return { width, counts, sums };
}

/** Bytes of the row of one class. @param {number} width @param {string} numbers */
export const rowBytes = (width, numbers) => BEGIN + NUMBERS[numbers] * width;

/** A tensor of rows: at most one for each label. @param {string} name @param {number[]} shape @param {string} numbers */
export function specOfRows(name, [labels, width], numbers) {
  return { name, shape: [labels, rowBytes(width, numbers)], dtype: "uint8", variable: true };
}

/**
 * One row for each class that has samples: the label, the count and the largest number, all little-endian, then the
 * mean relative to that number. @param {ClassSums} sums @param {string} numbers
 */
export function writeRows({ width, counts, sums }, numbers) {
  const bytes = rowBytes(width, numbers);
  const rows = new Uint8Array(sums.size * bytes);
  const view = new DataView(rows.buffer);
  [...sums].forEach(([label, sum], place) => {
    const [mean, largest] = quantiseRow(sum.map((value) => value / counts[label]), numbers);
    view.setUint16(place * bytes, label, true);
    view.setUint32(place * bytes + 2, counts[label], true);
    view.setFloat32(place * bytes + 6, largest, true);
    rows.set(new Uint8Array(mean.buffer), place * bytes + BEGIN);
  });
  return { dtype: "uint8", shape: [sums.size, bytes], data: rows };
}

/**
 * The sums that rows stand for, of classes below `labels`. @param {import("./flat.js").Tensor} rows
 * @param {number} labels @param {number} width @returns {ClassSums}
 */
export function readRows({ shape: [count, bytes], data }, labels, width) {
  const isShort = bytes === rowBytes(width, "int8");
  const counts = new Int32Array(labels);
  const sums = new Map();
  for (let place = 0; place < count; place += 1) {
    const row = data.slice(place * bytes, (place + 1) * bytes);
    const view = new DataView(row.buffer);
    const label = view.getUint16(0, true);
    const mean = isShort ? new Int8Array(row.buffer, BEGIN) : new Uint16Array(row.buffer, BEGIN);
    counts[label] = view.getUint32(2, true);
    sums.set(label, restoreRow(mean, view.getFloat32(6, true)).map((value) => value * counts[label]));
  }
  return { width, counts, sums };
}

/** The numbers that `quantiseRow` shortened, up to rounding. @param {Int8Array | Uint16Array} values @param {number} largest */
export function restoreRow(values, largest) {
  const isShort = values instanceof Int8Array;
  return Float64Array.from(values, (value) => (isShort ? value / 127 : fromHalf(value)) * largest);
}

/**
 * Numbers relative to the largest of them, as float16 or int8; and that largest number. Throws TensorError for a
 * number that is not finite.
 * @param {Float64Array} row @param {string} numbers @returns {[Int8Array | Uint16Array, number]}
 */
export function quantiseRow(row, numbers) {
  const largest = Math.fround(row.reduce((most, value) => Math.max(most, Math.abs(value)), 0));
  if (!Number.isFinite(largest)) throw new TensorError("features have non-finite values");
  const relative = row.map((value) => value / (largest || 1));
  if (numbers === "float16") return [Uint16Array.from(relative, toHalf), largest];
  return [Int8Array.from(relative, (value) => whole(127 * Math.max(-1, Math.min(1, value)))), largest];
}
