/**
 * Lossy, shorter encodings of float32 numbers. `write` encodes finite numbers, at least one, as arrays, of which the
 * main one is named ""; it returns null if that is impossible or saves nothing. `read` gives the numbers that the
 * other side will read, as float32. `size` gives the bytes of so many numbers, before packing. Part of
 * strategies/codecs/codec.py.
 */
import { fromHalf, toHalf } from "../half.js";
import { whole } from "../rounding.js";
import { splitPlanes } from "./planes.js";

const INFINITY = 0x7c00;
/** Numbers that share one scale, which adds 1.6% of bytes. */
const BLOCK = 256;
/** Fewest numbers to encode: with fewer, the name of the scales takes more bytes than is saved. */
const LEAST = 32;
/** The smallest scale; numbers of a smaller one become 0, because only some processors flush it to zero. */
const TINY = 2 ** -126;

/** 16-bit numbers: 11 bits of precision from 6e-5 to 65504. */
export const half = {
  name: "half",
  beside: 0,
  /** @param {Float32Array} values @param {readonly number[]} shape */
  write(values, shape) {
    const bits = Uint16Array.from(values, toHalf);
    return bits.some((word) => (word & INFINITY) === INFINITY) ? null : { "": splitPlanes(bits, shape) };
  },
  /** @param {Float32Array} values those given to `write` */
  read: (values) => values.map((value) => fromHalf(toHalf(value))),
  size: (values) => 2 * values,
};

/** 8-bit numbers: -127 to 127 times a float32 scale that BLOCK neighbours share. Ties go to even. */
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
    if (scale < TINY) continue; // the scale and the codes stay 0
    scales[row] = scale;
    block.forEach((value, at) => {
      codes[begin + at] = Math.min(127, Math.max(-127, whole(Math.fround(value / scale))));
    });
  }
  return { codes, scales };
}
