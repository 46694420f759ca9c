/**
 * Random directions that are the same bits on every device, by the protocol that strategies/directions/directions.py
 * defines. Word j of direction p under seed s is word j mod 4 of Philox4x64-10(counter = floor(j / 4) + 1,
 * key = (s, p)).
 */

import { UnknownGenerator } from "./errors.js";
import { fill } from "./philox.js";

/** Element i is (popcount(word i) - 32) / 4. */
export const GENERATOR = "philox4x64-popcount/1";
/** Element i is 1 where bit i mod 64 of word floor(i / 64) is set, and -1 elsewhere. */
export const RADEMACHER = "philox4x64-rademacher/1";
/** Elements generated at a time; a whole number of counters of any generator. */
export const BLOCK = 1 << 15;

const HALVES_OF_A_COUNTER = 8;

/** By generator: the elements of a word, and the function that turns halves of words into elements. */
const GENERATORS = new Map([
  [GENERATOR, { perWord: 1, elements: normalLike }],
  [RADEMACHER, { perWord: 64, elements: signs }],
]);

/** @param {Int32Array} halves @param {Float32Array} out */
function normalLike(halves, out) {
  for (let i = 0; i < out.length; i += 1) {
    out[i] = (popcount(halves[2 * i]) + popcount(halves[2 * i + 1]) - 32) * 0.25;
  }
}

/** @param {number} word of 32 bits */
function popcount(word) {
  let bits = word - ((word >>> 1) & 0x55555555);
  bits = (bits & 0x33333333) + ((bits >>> 2) & 0x33333333);
  return Math.imul((bits + (bits >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
}

/** The bits of float32 -1; turning the sign bit gives 1. */
const MINUS_ONE = 0xbf800000 | 0;

/** @param {Int32Array} halves @param {Float32Array} out */
function signs(halves, out) {
  const bits = new Int32Array(out.buffer);
  for (let i = 0; i < bits.length; i += 1) bits[i] = MINUS_ONE ^ ((halves[i >>> 5] >>> (i & 31)) << 31);
}

/** Raises UnknownGenerator unless this version has a generator of this name. @param {string} name */
export function checkGenerator(name) {
  if (GENERATORS.has(name)) return;
  const names = [...GENERATORS.keys()].map((generator) => `'${generator}'`).join(", ");
  throw new UnknownGenerator(`directions from '${name}'; this version has ${names}: update it`);
}

/**
 * Elements start .. start + size of direction `index` under `seed`.
 * @param {{seed: bigint, index: bigint, generator: string}} of 0 <= seed, index < 2**64
 * @param {number} start at a whole counter @param {number} size
 * @returns {Float32Array} (size,) Raises UnknownGenerator, and RangeError unless `start` is at a whole counter.
 */
export function direction({ seed, index, generator }, start, size) {
  checkGenerator(generator);
  const { perWord, elements } = /** @type {any} */ (GENERATORS.get(generator));
  const perCounter = 4 * perWord;
  if (start % perCounter) {
    throw new RangeError(`a direction can be entered at multiples of ${perCounter}, not at ${start}`);
  }
  const halves = new Int32Array(HALVES_OF_A_COUNTER * Math.ceil(size / perCounter));
  fill([seed, index], start / perCounter + 1, halves);
  const values = new Float32Array(size);
  elements(halves, values);
  return values;
}
