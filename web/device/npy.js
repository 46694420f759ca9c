/** Reads arrays as numpy stores them (.npy, format versions 1 to 3), except arrays of objects. */

import { text, utf8, view } from "./bytes.js";
import { DataError, oneLine } from "./errors.js";
import { shapeText, sizeOf } from "./flat.js";

const MAGIC = [0x93, ...utf8("NUMPY")];
const TYPES = {
  u1: [1, "getUint8"], i1: [1, "getInt8"], b1: [1, "getUint8"], u2: [2, "getUint16"], i2: [2, "getInt16"],
  u4: [4, "getUint32"], i4: [4, "getInt32"], u8: [8, "getBigUint64"], i8: [8, "getBigInt64"],
  f4: [4, "getFloat32"], f8: [8, "getFloat64"],
};
/** Bytes of a letter (UCS-4). */
const LETTER = 4;

/** @typedef {{shape: number[], dtype: string, data: ArrayLike<number> | string[]}} Stored dtype as in the file: "f4" */

/** @param {Uint8Array} bytes of a .npy file @returns {Stored} @throws DataError */
export function readNpy(bytes) {
  const { head, begin } = headOf(bytes);
  const [, order, kind] = /'descr':\s*'([<>|=])([a-zA-Z]\d+)'/.exec(head) ?? [];
  const [, lengths] = /'shape':\s*\(([^)]*)\)/.exec(head) ?? [];
  if (!kind || lengths === undefined || /'fortran_order':\s*True/.test(head)) {
    throw new DataError("a .npy file of a kind that is not read: expected rows of numbers, or of names");
  }
  const shape = shapeOf(lengths);
  const width = widthOf(kind);
  const takes = sizeOf(shape) * width;
  const rest = bytes.length - begin;
  if (!(takes <= rest)) {
    throw new DataError(`an array ${shapeText(shape)} of ${kind} takes ${takes} bytes, ${rest} are there`);
  }
  const content = bytes.subarray(begin, begin + takes);
  return { shape, dtype: kind, data: kind[0] === "U" ? names(content, width, order) : values(content, kind, order) };
}

/** The header, and the place where the content begins. */
function headOf(bytes) {
  const wide = bytes[6] > 1;
  const first = wide ? 12 : 10;
  if (bytes.length < first || !MAGIC.every((byte, at) => bytes[at] === byte)) throw new DataError("not a .npy file");
  const size = wide ? view(bytes).getUint32(8, true) : view(bytes).getUint16(8, true);
  const rest = bytes.length - first;
  if (size > rest) throw new DataError(`the head of the .npy file takes ${size} bytes, ${rest} are there`);
  try {
    return { head: text(bytes.subarray(first, first + size)), begin: first + size };
  } catch {
    throw new DataError("not a .npy file: its head is no text");
  }
}

/** @param {string} lengths as in "2, 3" or "2,"; empty for a single value */
function shapeOf(lengths) {
  const parts = lengths.split(",").map((length) => length.trim()).filter(Boolean);
  if (parts.every((length) => /^\d+$/.test(length))) return parts.map(Number);
  throw new DataError(`the array's shape is (${lengths}), expected lengths from 0 on`);
}

/** Bytes of one value. @param {string} kind */
function widthOf(kind) {
  const width = kind[0] === "U" ? LETTER * Number(kind.slice(1)) : TYPES[kind]?.[0];
  if (!width) throw new DataError(`an array of ${kind}, which is not read: expected numbers or names`);
  return width;
}

function values(content, kind, order) {
  if (kind === "u1") return content;
  const [width, get] = TYPES[kind];
  const from = view(content);
  const output = kind === "f4" ? new Float32Array(content.length / width) : new Float64Array(content.length / width);
  for (let i = 0; i < output.length; i++) output[i] = Number(from[get](i * width, order !== ">"));
  return output;
}

function names(content, width, order) {
  const from = view(content);
  const letters = (i) => Array.from({ length: width / LETTER }, (_, place) => from.getUint32(i * width + LETTER * place, order !== ">"));
  try {
    return Array.from({ length: content.length / width }, (_, i) => String.fromCodePoint(...letters(i).filter(Boolean)));
  } catch (error) {
    throw new DataError(`names that are no text: ${oneLine(error)}`);
  }
}
