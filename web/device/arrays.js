// Reads samples from files: .npz with x (n, *input) and y (n,), .npy, .csv. Arrays of objects are refused.

import { DataError } from "./errors.js";
import { readNpy } from "./npy.js";
import { npz } from "./npz.js";
import { sizeOf } from "./preparing.js";

const NAMES = "class_names";
const LABELS = ["label", "class", "target", "y"];

/**
 * @typedef {import("./npy.js").Stored} Stored
 * @typedef {{raw: Uint8Array | Float32Array, labels: (string | number)[] | null, count: number}} Batch
 *   raw (count, *input); labels as names or class numbers, null if the file has none
 */

/**
 * The samples of an .npz, .npy or .csv file. @throws DataError
 * @param {string} name of the file
 * @param {Uint8Array} bytes
 * @param {number[]} shape of the input
 * @returns {Promise<Batch>}
 */
export async function readArrays(name, bytes, shape) {
  const ending = name.toLowerCase().split(".").pop();
  if (ending === "npz") return readNpz(bytes, shape);
  if (ending === "npy") return batchOf(readNpy(bytes), null, shape);
  if (ending === "csv" || ending === "tsv") return readTable(new TextDecoder().decode(bytes), shape);
  throw new DataError(`${name} is not read: expected .npz, .npy or .csv`);
}

async function readNpz(bytes, shape) {
  const arrays = await npz(bytes, ["x", "y", NAMES]);
  for (const name of ["x", "y"]) if (!arrays.has(name)) throw new DataError(`the .npz file has no array '${name}'`);
  const y = arrays.get("y");
  const labels = Array.from(y.data);
  const names = arrays.get(NAMES);
  return batchOf(arrays.get("x"), names && typeof labels[0] === "number" ? named(labels, names) : labels, shape);
}

/** @param {number[]} numbers @param {Stored} names */
function named(numbers, names) {
  if (names.dtype[0] !== "U") throw new DataError(`${NAMES} is no list of names: it is of ${names.dtype}`);
  const labels = numbers.map((number) => names.data[number]);
  const none = labels.indexOf(undefined);
  if (none >= 0) throw new DataError(`a class number without a name: ${numbers[none]} of ${names.data.length}`);
  return labels;
}

/** An array as samples; a single channel may have no axis, and neither may a single sample. */
function batchOf(x, labels, shape) {
  if (!x.data.length || typeof x.data[0] !== "number") throw new DataError("x is no array of numbers");
  const same = (a, b) => a.length === b.length && a.every((n, i) => n === b[i]);
  const shapes = shape[0] === 1 ? [shape, shape.slice(1)] : [shape];
  if (!shapes.some((form) => same(form, x.shape) || same(form, x.shape.slice(1)))) {
    throw new DataError(`samples are (${x.shape}), the task's input is (${shape})`);
  }
  const count = x.data.length / sizeOf(shape);
  if (labels && labels.length !== count) throw new DataError(`${labels.length} labels for ${count} samples`);
  const raw = x.dtype === "u1" ? Uint8Array.from(/** @type {any} */ (x.data)) : Float32Array.from(/** @type {any} */ (x.data));
  return { raw, labels, count };
}

/**
 * A row for each sample: its numbers, and a label in the column with such a name, or in the last. Rows are counted
 * from 1, the header included.
 */
function readTable(text, shape) {
  const lines = [...text.split(/\r?\n/).entries()].filter(([, line]) => line.trim());
  const rows = lines.map(([at, line]) => ({ number: at + 1, cells: line.split(/[,;\t]/).map((cell) => cell.trim()) }));
  const isLabel = (/** @type {string} */ cell) => LABELS.includes(cell.toLowerCase());
  const head = rows[0]?.cells.some(isLabel) ? rows.shift().cells : [];
  const width = sizeOf(shape) + 1;
  if (!rows.length) throw new DataError(`the table has no samples, expected rows of ${width} cells: the numbers and a label`);
  const label = head.some(isLabel) ? head.findIndex(isLabel) : width - 1;
  const raw = new Float32Array(rows.length * (width - 1));
  for (const [i, { number, cells }] of rows.entries()) {
    if (cells.length !== width) throw new DataError(`row ${number} has ${cells.length} cells, expected ${width}: the numbers and a label`);
    raw.set(cells.filter((_, at) => at !== label).map((cell) => valueOf(cell, number)), i * (width - 1));
  }
  return { raw, labels: rows.map(({ cells }) => cells[label]), count: rows.length };
}

/** @param {string} cell @param {number} row */
function valueOf(cell, row) {
  const value = cell === "" ? NaN : Math.fround(Number(cell));
  if (Number.isFinite(value)) return value;
  throw new DataError(`row ${row} has ${JSON.stringify(cell.slice(0, 40))}, expected a number`);
}
