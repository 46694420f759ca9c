/**
 * Encodes the change of values from the base exactly. It is the difference of the bit patterns: for two numbers of
 * the same sign, the number of representable float32 numbers between them. Its high bytes are nearly all zero. Part of
 * strategies/codecs/codec.py.
 */
import { splitPlanes } from "./planes.js";

export const NAME = "delta";

/** @param {Float32Array} values @param {Float32Array} base @param {readonly number[]} shape */
export function write(values, base, shape) {
  const [bits, others] = [bitsOf(values), bitsOf(base)];
  const folded = bits.map((word, at) => {
    const steps = (word - others[at]) | 0;
    return (steps << 1) ^ (steps >> 31);
  });
  return { "": splitPlanes(folded, shape) };
}

const bitsOf = (values) => new Uint32Array(values.buffer, values.byteOffset, values.length);
