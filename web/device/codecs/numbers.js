/**
 * Shorter ways to write float32 numbers, with a loss. `write` gives the arrays that stand for them, the main one
 * by "", for finite numbers, at least one; null where they cannot be written, or nothing is gained by it. `read`
 * is what the other side makes of them, as float32. `size` are the bytes of so many numbers, before packing.
 */
import { fromHalf, toHalf } from "../half.js";
import { whole } from "../rounding.js";
import { split } from "./planes.js";

const INFINITY = 0x7c00;
/** Numbers of one int8 tensor with one scale: 1.6% more bytes. */
const BLOCK = 256;
/** With fewer numbers the name of the scales takes more bytes than is gained. */
const LEAST = 32;
/** A smaller scale could be flushed to zero by some processors, and not by others: all its numbers are 0. */
const TINY = 2 ** -126;

/** Numbers of 16 bits, from 6e-5 to 65504 with 11 bits of precision. */
export const half = {
  name: "half",
  beside: 0,
  /** @param {Float32Array} values @param {readonly number[]} shape */
  write(values, shape) {
    const bits = Uint16Array.from(values, toHalf);
    return bits.some((word) => (word & INFINITY) === INFINITY) ? null : { "": split(bits, shape) };
  },
  /** @param {Float32Array} values as they were written */
  read: (values) => values.map((value) => fromHalf(toHalf(value))),
  size: (values) => 2 * values,
};

/** Numbers of 8 bits: -127 to 127 times a float32 scale that BLOCK neighbours share. Ties go to even. */
export const int8 = {
  name: "int8",
  beside: 1,
  write(values, shape) {
    if (values.length < LEAST) return null;
    const { codes, scales } = coded(values);
    return {
      "": { dtype: "int8", shape: [...shape], data: codes },
      scales: { dtype: "float32", shape: [scales.length], data: scales },
    };
  },
  read(values) {
    const { codes, scales } = coded(values);
    return values.map((_, at) => codes[at] * scales[Math.floor(at / BLOCK)]);
  },
  size: (values) => values * (1 + 4 / BLOCK),
};

/** @param {Float32Array} values */
function coded(values) {
  const scales = new Float32Array(Math.ceil(values.length / BLOCK));
  const codes = new Int8Array(values.length);
  for (const row of scales.keys()) {
    const begin = row * BLOCK;
    const block = values.subarray(begin, begin + BLOCK);
    const scale = Math.fround(block.reduce((most, value) => Math.max(most, Math.abs(value)), 0) / 127);
    if (scale < TINY) continue; // also their codes are 0
    scales[row] = scale;
    block.forEach((value, at) => {
      codes[begin + at] = Math.min(127, Math.max(-127, whole(Math.fround(value / scale))));
    });
  }
  return { codes, scales };
}
