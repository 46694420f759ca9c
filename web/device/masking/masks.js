/**
 * Adds masks to vectors: the keystream of a seed, modulo 2^32 and 2^64 (strategies/masking/masks.py).
 *
 * The keystream is ChaCha20 (RFC 8439), in chunks, each with its own nonce: the part of the vector, then the number of
 * the chunk. Typed arrays are little-endian, as in every browser.
 */
import { view } from "../bytes.js";

/** Bytes of the keystream with one nonce. */
export const CHUNK = 1 << 16;
/** 32-bit words of a block, and of a chunk. */
const BLOCK = 16;
const CHUNK_WORDS = CHUNK / 4;
const WORD = 2 ** 32;

/** Integers of an update, modulo 2^32 and modulo 2^64. All views share the memory of `bytes`, which is sent. */
export class MaskedVector {
  /** Zeros. @param {number} values @param {number} sums how many there are of each */
  constructor(values, sums) {
    /** All integers, little-endian: the values, then the sums. */
    this.bytes = new Uint8Array(4 * values + 8 * sums);
    /** Changes of weights. */
    this.values = new Uint32Array(this.bytes.buffer, 0, values);
    /** Numbers that need more digits: two words for each, the lower first. */
    this.sums = new Uint32Array(this.bytes.buffer, 4 * values, 2 * sums);
  }

  /** @param {number} at @param {number} whole a whole number, at most 2^63 in size */
  setSum(at, whole) {
    const upper = Math.floor(whole / WORD); // exact, as WORD is a power of 2
    this.sums[2 * at] = whole - upper * WORD;
    this.sums[2 * at + 1] = upper;
  }

  /** Adds the keystream of each seed, in place. @param {Uint8Array[]} seeds 32 bytes each */
  addMasks(seeds) {
    for (const seed of seeds) {
      addKeystream(this.values, seed, 0);
      addKeystream(this.sums, seed, 1);
    }
  }
}

/** @param {Uint32Array} words @param {Uint8Array} seed @param {number} part 0: numbers of one word, 1: of two */
function addKeystream(words, seed, part) {
  const add = part ? addPairs : addWords;
  const state = firstState(seed, part);
  const stream = new Int32Array(BLOCK);
  for (let start = 0; start < words.length; start += CHUNK_WORDS, state[14] += 1) {
    const end = Math.min(start + CHUNK_WORDS, words.length);
    state[12] = 1;
    for (let at = start; at < end; at += BLOCK, state[12] += 1) {
      writeBlock(state, stream);
      add(words, stream, at, Math.min(BLOCK, end - at));
    }
  }
}

/** The state of the first block. @param {Uint8Array} seed @param {number} part */
function firstState(seed, part) {
  const state = Int32Array.of(0x61707865, 0x3320646e, 0x79622d32, 0x6b206574, ...new Uint8Array(12));
  const key = view(seed);
  for (let i = 0; i < 8; i += 1) state[4 + i] = key.getInt32(4 * i, true);
  state[13] = part;
  return state;
}

/** @param {Uint32Array} words @param {Int32Array} stream @param {number} at @param {number} count */
function addWords(words, stream, at, count) {
  for (let i = 0; i < count; i += 1) words[at + i] += stream[i];
}

/** As `addWords`, of numbers of two words, the lower first. */
function addPairs(
  /** @type {Uint32Array} */ words,
  /** @type {Int32Array} */ stream,
  /** @type {number} */ at,
  /** @type {number} */ count,
) {
  for (let i = 0; i < count; i += 2) {
    const lower = words[at + i] + (stream[i] >>> 0);
    words[at + i] = lower;
    words[at + i + 1] += stream[i + 1] + (lower >= WORD ? 1 : 0);
  }
}

/**
 * One block of the keystream (RFC 8439, section 2.3). Local variables stay in registers, which an array would not.
 * @param {Int32Array} s the state @param {Int32Array} out
 */
function writeBlock(s, out) {
  let a0 = s[0], a1 = s[1], a2 = s[2], a3 = s[3];
  let b0 = s[4], b1 = s[5], b2 = s[6], b3 = s[7];
  let c0 = s[8], c1 = s[9], c2 = s[10], c3 = s[11];
  let d0 = s[12], d1 = s[13], d2 = s[14], d3 = s[15];
  for (let round = 0; round < 10; round += 1) {
    a0 = (a0 + b0) | 0; d0 ^= a0; d0 = (d0 << 16) | (d0 >>> 16); c0 = (c0 + d0) | 0; b0 ^= c0; b0 = (b0 << 12) | (b0 >>> 20);
    a0 = (a0 + b0) | 0; d0 ^= a0; d0 = (d0 << 8) | (d0 >>> 24); c0 = (c0 + d0) | 0; b0 ^= c0; b0 = (b0 << 7) | (b0 >>> 25);
    a1 = (a1 + b1) | 0; d1 ^= a1; d1 = (d1 << 16) | (d1 >>> 16); c1 = (c1 + d1) | 0; b1 ^= c1; b1 = (b1 << 12) | (b1 >>> 20);
    a1 = (a1 + b1) | 0; d1 ^= a1; d1 = (d1 << 8) | (d1 >>> 24); c1 = (c1 + d1) | 0; b1 ^= c1; b1 = (b1 << 7) | (b1 >>> 25);
    a2 = (a2 + b2) | 0; d2 ^= a2; d2 = (d2 << 16) | (d2 >>> 16); c2 = (c2 + d2) | 0; b2 ^= c2; b2 = (b2 << 12) | (b2 >>> 20);
    a2 = (a2 + b2) | 0; d2 ^= a2; d2 = (d2 << 8) | (d2 >>> 24); c2 = (c2 + d2) | 0; b2 ^= c2; b2 = (b2 << 7) | (b2 >>> 25);
    a3 = (a3 + b3) | 0; d3 ^= a3; d3 = (d3 << 16) | (d3 >>> 16); c3 = (c3 + d3) | 0; b3 ^= c3; b3 = (b3 << 12) | (b3 >>> 20);
    a3 = (a3 + b3) | 0; d3 ^= a3; d3 = (d3 << 8) | (d3 >>> 24); c3 = (c3 + d3) | 0; b3 ^= c3; b3 = (b3 << 7) | (b3 >>> 25);
    a0 = (a0 + b1) | 0; d3 ^= a0; d3 = (d3 << 16) | (d3 >>> 16); c2 = (c2 + d3) | 0; b1 ^= c2; b1 = (b1 << 12) | (b1 >>> 20);
    a0 = (a0 + b1) | 0; d3 ^= a0; d3 = (d3 << 8) | (d3 >>> 24); c2 = (c2 + d3) | 0; b1 ^= c2; b1 = (b1 << 7) | (b1 >>> 25);
    a1 = (a1 + b2) | 0; d0 ^= a1; d0 = (d0 << 16) | (d0 >>> 16); c3 = (c3 + d0) | 0; b2 ^= c3; b2 = (b2 << 12) | (b2 >>> 20);
    a1 = (a1 + b2) | 0; d0 ^= a1; d0 = (d0 << 8) | (d0 >>> 24); c3 = (c3 + d0) | 0; b2 ^= c3; b2 = (b2 << 7) | (b2 >>> 25);
    a2 = (a2 + b3) | 0; d1 ^= a2; d1 = (d1 << 16) | (d1 >>> 16); c0 = (c0 + d1) | 0; b3 ^= c0; b3 = (b3 << 12) | (b3 >>> 20);
    a2 = (a2 + b3) | 0; d1 ^= a2; d1 = (d1 << 8) | (d1 >>> 24); c0 = (c0 + d1) | 0; b3 ^= c0; b3 = (b3 << 7) | (b3 >>> 25);
    a3 = (a3 + b0) | 0; d2 ^= a3; d2 = (d2 << 16) | (d2 >>> 16); c1 = (c1 + d2) | 0; b0 ^= c1; b0 = (b0 << 12) | (b0 >>> 20);
    a3 = (a3 + b0) | 0; d2 ^= a3; d2 = (d2 << 8) | (d2 >>> 24); c1 = (c1 + d2) | 0; b0 ^= c1; b0 = (b0 << 7) | (b0 >>> 25);
  }
  out[0] = a0 + s[0]; out[1] = a1 + s[1]; out[2] = a2 + s[2]; out[3] = a3 + s[3];
  out[4] = b0 + s[4]; out[5] = b1 + s[5]; out[6] = b2 + s[6]; out[7] = b3 + s[7];
  out[8] = c0 + s[8]; out[9] = c1 + s[9]; out[10] = c2 + s[10]; out[11] = c3 + s[11];
  out[12] = d0 + s[12]; out[13] = d1 + s[13]; out[14] = d2 + s[14]; out[15] = d3 + s[15];
}
