/** The draws of numpy's Generator(PCG64(seed)) that devices use, bit for bit (numpy 1.26 to 2.4). */

import { sha256, utf8 } from "./bytes.js";

const MASK_64 = (1n << 64n) - 1n;
const MASK_128 = (1n << 128n) - 1n;
/** The multiplier of PCG with 128 bits of state (O'Neill 2014). */
const MULTIPLIER = 0x2360ed051fc65da44385df649fccf645n;

/** Constants of numpy.random.SeedSequence, after Melissa O'Neill's seed_seq_fe. */
const INIT_A = 0x43b0d7e5;
const MULT_A = 0x931e8875;
const INIT_B = 0x8b51f9dd;
const MULT_B = 0x58f38ded;
const MIX_LEFT = 0xca01f9dd;
const MIX_RIGHT = 0x4973f715;
const POOL = 4;

/** The 32-bit words of a seed, the least significant first; at least one. @param {bigint} seed */
function wordsOf(seed) {
  const words = [];
  for (let rest = seed; rest > 0n; rest >>= 32n) words.push(Number(rest & 0xffffffffn));
  return words.length ? words : [0];
}

/** SeedSequence(seed).generate_state(words, uint32). @param {bigint} seed @param {number} words */
function seedState(seed, words) {
  let multiplier = INIT_A;
  const hash = (/** @type {number} */ value) => {
    const mixed = value ^ multiplier;
    multiplier = Math.imul(multiplier, MULT_A);
    const product = Math.imul(mixed, multiplier);
    return (product ^ (product >>> 16)) >>> 0;
  };
  const mix = (/** @type {number} */ x, /** @type {number} */ y) => {
    const mixed = (Math.imul(MIX_LEFT, x) - Math.imul(MIX_RIGHT, y)) | 0;
    return (mixed ^ (mixed >>> 16)) >>> 0;
  };
  const entropy = wordsOf(seed);
  const pool = Array.from({ length: POOL }, (_, i) => hash(entropy[i] ?? 0));
  for (let from = 0; from < POOL; from++) {
    for (let to = 0; to < POOL; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  }
  for (const more of entropy.slice(POOL)) {
    for (let to = 0; to < POOL; to++) pool[to] = mix(pool[to], hash(more));
  }
  let other = INIT_B;
  return Array.from({ length: words }, (_, i) => {
    const mixed = pool[i % POOL] ^ other;
    other = Math.imul(other, MULT_B);
    const product = Math.imul(mixed, other);
    return (product ^ (product >>> 16)) >>> 0;
  });
}

/** A generator that draws as numpy.random.Generator(numpy.random.PCG64(seed)). */
export class Generator {
  #state = 0n;
  #increment;
  /** The upper half of a word of which the lower half was used. @type {number | null} */
  #half = null;

  /** @param {bigint} seed 0 or more */
  constructor(seed) {
    const words = seedState(seed, 8).map(BigInt);
    const long = (/** @type {number} */ at) => (words[at + 1] << 32n) | words[at];
    this.#increment = ((((long(4) << 64n) | long(6)) << 1n) | 1n) & MASK_128;
    this.#step();
    this.#state = (this.#state + ((long(0) << 64n) | long(2))) & MASK_128;
    this.#step();
  }

  #step() {
    this.#state = (this.#state * MULTIPLIER + this.#increment) & MASK_128;
  }

  /** 64 random bits. @returns {bigint} */
  uint64() {
    this.#step();
    const folded = (this.#state >> 64n) ^ (this.#state & MASK_64);
    const turn = this.#state >> 122n;
    return ((folded >> turn) | (folded << (64n - turn))) & MASK_64;
  }

  /** 32 random bits: the halves of a word in turn, the lower one first. @returns {number} */
  uint32() {
    if (this.#half !== null) {
      const half = this.#half;
      this.#half = null;
      return half;
    }
    const word = this.uint64();
    this.#half = Number(word >> 32n);
    return Number(word & 0xffffffffn);
  }

  /**
   * A whole number from 0 to below `most`, as numpy's `integers(most)`, for 2**32 < most <= 2**63.
   * @param {bigint} most
   * @returns {bigint}
   */
  integers(most) {
    let product = this.uint64() * most;
    if ((product & MASK_64) < most) {
      const least = (MASK_64 - (most - 1n)) % most;
      while ((product & MASK_64) < least) product = this.uint64() * most;
    }
    return product >> 64n;
  }

  /** Random float64 in [0, 1). @param {number} count @returns {Float64Array} */
  random(count) {
    return Float64Array.from({ length: count }, () => Number(this.uint64() >> 11n) / 2 ** 53);
  }

  /**
   * A new array of the same items in random order; of a number n, the items are 0 to n - 1.
   * @param {number | Int32Array} items fewer than 2**32 @returns {Int32Array}
   */
  permutation(items) {
    const mixed = typeof items === "number" ? Int32Array.from({ length: items }, (_, i) => i) : items.slice();
    for (let i = mixed.length - 1; i > 0; i--) {
      const j = this.#upTo(i);
      [mixed[i], mixed[j]] = [mixed[j], mixed[i]];
    }
    return mixed;
  }

  /** A whole number from 0 to `most`, by rejecting larger ones. @param {number} most 1 to 2**32 - 1 */
  #upTo(most) {
    const mask = 2 ** (32 - Math.clz32(most)) - 1;
    let value = (this.uint32() & mask) >>> 0;
    while (value > most) value = (this.uint32() & mask) >>> 0;
    return value;
  }
}

/**
 * The device's own randomness in a round: the same for the same round seed and device name.
 * @param {{seed: bigint, device: string}} run @returns {Promise<Generator>}
 */
export async function rngOf(run) {
  const digest = await sha256(utf8(`${run.seed}:${run.device}`));
  let seed = 0n;
  for (let i = 15; i >= 0; i--) seed = (seed << 8n) | BigInt(digest[i]);
  return new Generator(seed);
}
