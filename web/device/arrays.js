// Samples in files: .npz with x (n, *input) and y (n,), .npy, .csv. What holds objects is not read.

import { DataError } from "./errors.js";
import { sizeOf } from "./preparing.js";

const LARGEST = 1 << 30; // bytes that a packed array may take unpacked
const NAMES = "class_names";
const LABELS = ["label", "class", "target", "y"];
const TYPES = {
  u1: [1, "getUint8"], i1: [1, "getInt8"], b1: [1, "getUint8"], u2: [2, "getUint16"], i2: [2, "getInt16"],
  u4: [4, "getUint32"], i4: [4, "getInt32"], u8: [8, "getBigUint64"], i8: [8, "getBigInt64"],
  f4: [4, "getFloat32"], f8: [8, "getFloat64"],
};

/**
 * @typedef {{shape: number[], dtype: string, data: ArrayLike<number> | string[]}} Stored dtype as numpy writes it
 * @typedef {{raw: Uint8Array | Float32Array, labels: (string | number)[] | null, count: number}} Batch
 *   raw (count, *input); labels as names or class numbers, null where the file has none
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
  for (const wanted of ["x", "y"]) if (!arrays.has(wanted)) throw new DataError(`the .npz file has no array '${wanted}'`);
  const y = arrays.get("y");
  let labels = Array.from(y.data);
  if (arrays.has(NAMES)) labels = labels.map((number) => arrays.get(NAMES).data[number]);
  if (labels.some((label) => label === undefined)) throw new DataError("a class number without a name");
  return batchOf(arrays.get("x"), labels, shape);
}

/** An array as samples; an axis of one channel may be missing, and that of the samples where there is one. */
function batchOf(x, labels, shape) {
  if (!x.data.length || typeof x.data[0] !== "number") throw new DataError("x is no array of numbers");
  const same = (a, b) => a.length === b.length && a.every((n, i) => n === b[i]);
  const shapes = shape[0] === 1 ? [shape, shape.slice(1)] : [shape];
  if (!shapes.some((one) => same(one, x.shape) || same(one, x.shape.slice(1)))) {
    throw new DataError(`samples are (${x.shape}), the task's input is (${shape})`);
  }
  const count = x.data.length / sizeOf(shape);
  if (labels && labels.length !== count) throw new DataError(`${labels.length} labels for ${count} samples`);
  const raw = x.dtype === "u1" ? Uint8Array.from(/** @type {any} */ (x.data)) : Float32Array.from(/** @type {any} */ (x.data));
  return { raw, labels, count };
}

/**
 * Arrays of an .npz file: a ZIP, stored or deflated.
 * @param {Uint8Array} bytes
 * @param {string[]} wanted
 * @returns {Promise<Map<string, Stored>>}
 */
export async function npz(bytes, wanted) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) throw new DataError("not a .npz file");
  const found = new Map();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left--) {
    const [nameSize, extra, comment] = [28, 30, 32].map((field) => view.getUint16(at + field, true));
    const name = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameSize)).replace(/\.npy$/, "");
    if (wanted.includes(name)) found.set(name, readNpy(await member(bytes, view, at)));
    at += 46 + nameSize + extra + comment;
  }
  return found;
}

/** The content of the file that the entry at `at` of the ZIP's list names. */
async function member(bytes, view, at) {
  const [packed, size, where] = [20, 24, 42].map((field) => view.getUint32(at + field, true));
  if (size > LARGEST) throw new DataError(`an array of ${size} bytes, at most ${LARGEST} are read`);
  const begin = where + 30 + view.getUint16(where + 26, true) + view.getUint16(where + 28, true);
  const content = bytes.subarray(begin, begin + packed);
  if (view.getUint16(at + 10, true) === 0) return content;
  const plain = new Blob([/** @type {any} */ (content)]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

/** @param {Uint8Array} bytes of a .npy file @returns {Stored} @throws DataError */
export function readNpy(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 12 || bytes[0] !== 0x93 || String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") throw new DataError("not a .npy file");
  const wide = bytes[6] > 1;
  const begin = wide ? 12 : 10;
  const size = wide ? view.getUint32(8, true) : view.getUint16(8, true);
  const head = new TextDecoder().decode(bytes.subarray(begin, begin + size));
  const [, order, kind] = /'descr':\s*'([<>|=])([a-zA-Z]\d+)'/.exec(head) ?? [];
  const shape = /'shape':\s*\(([^)]*)\)/.exec(head)?.[1].split(",").map((n) => n.trim()).filter(Boolean).map(Number);
  if (!kind || !shape || /'fortran_order':\s*True/.test(head)) throw new DataError("a .npy file of a kind that is not read");
  return { shape, dtype: kind, data: values(view, begin + size, { count: sizeOf(shape), kind, little: order !== ">" }) };
}

function values(view, begin, { count, kind, little }) {
  if (kind[0] === "U") return names(view, begin, { count, length: Number(kind.slice(1)), little });
  const type = TYPES[kind];
  if (!type) throw new DataError(`an array of ${kind}, which is not read`);
  if (begin + count * type[0] > view.byteLength) throw new DataError("a .npy file that ends too early");
  if (kind === "u1") return new Uint8Array(view.buffer, view.byteOffset + begin, count);
  const made = new Float64Array(count);
  for (let i = 0; i < count; i++) made[i] = Number(view[type[1]](begin + i * type[0], little));
  return made;
}

function names(view, begin, { count, length, little }) {
  if (begin + 4 * count * length > view.byteLength) throw new DataError("a .npy file that ends too early");
  return Array.from({ length: count }, (_, i) => {
    const points = Array.from({ length }, (_, place) => view.getUint32(begin + 4 * (i * length + place), little));
    return String.fromCodePoint(...points.filter(Boolean));
  });
}

/** A row for each sample: its numbers, and a label in the column that is named so, or in the last. */
function readTable(text, shape) {
  const rows = text.split(/\r?\n/).filter((line) => line.trim()).map((line) => line.split(/[,;\t]/).map((cell) => cell.trim()));
  const isHead = rows.length > 0 && rows[0].some((cell) => LABELS.includes(cell.toLowerCase()));
  const head = isHead ? rows.shift() : [];
  const width = sizeOf(shape) + 1;
  const wrong = rows.findIndex((row) => row.length !== width);
  if (!rows.length || wrong >= 0) throw new DataError(`row ${wrong + 1} has ${rows[wrong]?.length ?? 0} cells, expected ${width}: the numbers and a label`);
  const place = head.findIndex((cell) => LABELS.includes(cell.toLowerCase()));
  const label = place < 0 ? width - 1 : place;
  const raw = Float32Array.from(rows.flatMap((row) => row.filter((_, i) => i !== label).map(Number)));
  if (!raw.every(Number.isFinite)) throw new DataError("a cell of the table is no number");
  return { raw, labels: rows.map((row) => row[label]), count: rows.length };
}
