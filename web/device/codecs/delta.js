/**
 * Changes of the base in place of values, exactly: the distance of two float32 numbers in steps from one
 * representable number to the next of the same sign, whose high bytes are nearly all zero.
 */
import { split } from "./planes.js";

export const NAME = "delta";

/** @param {Float32Array} values @param {Float32Array} base @param {readonly number[]} shape */
export function write(values, base, shape) {
  const [bits, others] = [bitsOf(values), bitsOf(base)];
  const folded = bits.map((word, at) => {
    const steps = (word - others[at]) | 0;
    return (steps << 1) ^ (steps >> 31);
  });
  return { "": split(folded, shape) };
}

const bitsOf = (values) => new Uint32Array(values.buffer, values.byteOffset, values.length);
