/**
 * Philox4x64-10 (Salmon et al. 2011, Random123), computed in halves of 32 bits because BigInt is slow.
 *
 * The upper half of a product a * b of two halves is computed from the product in float64, which is off by at most
 * 2**11. The product minus its exact lower half is a multiple of 2**32, so that rounding gives the exact upper half.
 */

const M0_HIGH = 0xd2e7470e;
const M0_LOW = 0xe14c6c93;
const M1_HIGH = 0xca5a8263;
const M1_LOW = 0x95121157;
const W0_HIGH = 0x9e3779b9;
const W0_LOW = 0x7f4a7c15;
const W1_HIGH = 0xbb67ae85;
const W1_LOW = 0x84caa73b;
const ROUNDS = 10;
const LARGEST = 0xffffffff;
const DOWN = 2 ** -32;

/**
 * The upper 32 bits of a * b, given its lower 32 bits; all unsigned.
 * @param {number} a
 * @param {number} b
 * @param {number} low
 */
function upper(a, b, low) {
  return ((a * b - low) * DOWN + 0.5) >>> 0;
}

/**
 * Fills `halves` with the words of the counters from `counter` on, the lower half of each word first; 8 halves a
 * counter.
 * @param {[bigint, bigint]} key 64 bits each
 * @param {number} counter 0 to 2**53, the first word of the counter
 * @param {Int32Array} halves
 */
export function fill([first, second], counter, halves) {
  const low0 = Number(first & 0xffffffffn);
  const high0 = Number(first >> 32n);
  const low1 = Number(second & 0xffffffffn);
  const high1 = Number(second >> 32n);
  for (let at = 0, count = counter; at < halves.length; at += 8, count += 1) {
    let c0 = count >>> 0;
    let d0 = (count * DOWN) >>> 0;
    let c1 = 0,
      d1 = 0,
      c2 = 0,
      d2 = 0,
      c3 = 0,
      d3 = 0;
    let k0 = low0,
      l0 = high0,
      k1 = low1,
      l1 = high1;
    for (let round = 0; round < ROUNDS; round += 1) {
      // p = M0 * (c0, d0) and q = M1 * (c2, d2), each in four halves; x, y and z are lower halves of partial products
      const p0 = Math.imul(c0, M0_LOW) >>> 0;
      let x = Math.imul(d0, M0_LOW) >>> 0;
      let y = Math.imul(c0, M0_HIGH) >>> 0;
      let z = Math.imul(d0, M0_HIGH) >>> 0;
      let sum = upper(c0, M0_LOW, p0) + x + y;
      const p1 = sum >>> 0;
      sum = upper(d0, M0_LOW, x) + upper(c0, M0_HIGH, y) + z + (sum - p1) * DOWN;
      const p2 = sum >>> 0;
      const p3 = (upper(d0, M0_HIGH, z) + (sum - p2) * DOWN) >>> 0;
      const q0 = Math.imul(c2, M1_LOW) >>> 0;
      x = Math.imul(d2, M1_LOW) >>> 0;
      y = Math.imul(c2, M1_HIGH) >>> 0;
      z = Math.imul(d2, M1_HIGH) >>> 0;
      sum = upper(c2, M1_LOW, q0) + x + y;
      const q1 = sum >>> 0;
      sum = upper(d2, M1_LOW, x) + upper(c2, M1_HIGH, y) + z + (sum - q1) * DOWN;
      const q2 = sum >>> 0;
      const q3 = (upper(d2, M1_HIGH, z) + (sum - q2) * DOWN) >>> 0;
      c0 = (q2 ^ c1 ^ k0) >>> 0;
      d0 = (q3 ^ d1 ^ l0) >>> 0;
      c1 = q0;
      d1 = q1;
      c2 = (p2 ^ c3 ^ k1) >>> 0;
      d2 = (p3 ^ d3 ^ l1) >>> 0;
      c3 = p0;
      d3 = p1;
      sum = k0 + W0_LOW;
      k0 = sum >>> 0;
      l0 = (l0 + W0_HIGH + (sum > LARGEST ? 1 : 0)) >>> 0;
      sum = k1 + W1_LOW;
      k1 = sum >>> 0;
      l1 = (l1 + W1_HIGH + (sum > LARGEST ? 1 : 0)) >>> 0;
    }
    halves[at] = c0;
    halves[at + 1] = d0;
    halves[at + 2] = c1;
    halves[at + 3] = d1;
    halves[at + 4] = c2;
    halves[at + 5] = d2;
    halves[at + 6] = c3;
    halves[at + 7] = d3;
  }
}
