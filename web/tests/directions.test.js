import assert from "node:assert/strict";
import { test } from "node:test";

import { hex, sha256 } from "../device/bytes.js";
import { BLOCK, GENERATOR, RADEMACHER, checkGenerator, direction } from "../device/directions.js";
import { UnknownGenerator } from "../device/errors.js";
import { fill } from "../device/philox.js";
import { vectors } from "./vectors.js";

const cases = vectors("directions");
const elementsOf = ({ seed, index, generator, start, size }) =>
  direction({ seed: BigInt(seed), index: BigInt(index), generator }, start, size);

test("Philox gives the known answer of its authors", () => {
  const halves = new Int32Array(8);
  fill([0n, 0n], 0, halves);
  const expected = "16554d9eca36314c db20fe9d672d0fdc d7e772cee186176b 7e68b68aec7ba23b".replaceAll(" ", "");
  const words = [0, 2, 4, 6].flatMap((at) => [halves[at + 1] >>> 0, halves[at] >>> 0]);
  assert.equal(words.map((half) => half.toString(16).padStart(8, "0")).join(""), expected);
});

test("Philox gives the same as its definition in 64-bit integers", () => {
  const MASK = (1n << 64n) - 1n;
  const byDefinition = (counter, key) => {
    let [c, k] = [[counter, 0n, 0n, 0n], key];
    for (let round = 0; round < 10; round += 1) {
      const [p, q] = [0xd2e7470ee14c6c93n * c[0], 0xca5a826395121157n * c[2]];
      c = [(q >> 64n) ^ c[1] ^ k[0], q & MASK, (p >> 64n) ^ c[3] ^ k[1], p & MASK];
      k = [(k[0] + 0x9e3779b97f4a7c15n) & MASK, (k[1] + 0xbb67ae8584caa73bn) & MASK];
    }
    return c;
  };
  for (const [counter, key] of [
    [2 ** 32 - 1, [MASK, MASK]],
    [2 ** 45 + 3, [0x8000000080000000n, 0xffffffff00000000n]],
  ]) {
    const halves = new Int32Array(8);
    fill(key, counter, halves);
    const words = [0, 2, 4, 6].map((at) => (BigInt(halves[at + 1] >>> 0) << 32n) | BigInt(halves[at] >>> 0));
    assert.deepEqual(words, byDefinition(BigInt(counter), key));
  }
});

test("directions are those of Python, the golden vectors included", () => {
  for (const example of cases.elements) assert.deepEqual([...elementsOf(example)], example.elements);
});

test("long directions are those of Python, bit for bit", async () => {
  for (const example of cases.hashes) {
    const elements = elementsOf(example);
    assert.equal(hex(await sha256(new Uint8Array(elements.buffer))), example.sha256);
  }
});

test("a direction can be entered only at whole counters", () => {
  for (const [generator, step] of [
    [GENERATOR, 4],
    [RADEMACHER, 256],
  ]) {
    const of = { seed: 9n, index: 2n, generator };
    const whole = direction(of, 0, BLOCK + 16 * step);
    assert.deepEqual(direction(of, BLOCK, 16 * step), whole.subarray(BLOCK).slice());
    assert.throws(() => direction(of, 6, 8), new RegExp(`multiples of ${step}, not at 6`));
  }
});

test("an unknown generator is refused by name", () => {
  assert.throws(() => checkGenerator("torch-normal/1"), UnknownGenerator);
  assert.throws(
    () => direction({ seed: 1n, index: 0n, generator: "x" }, 0, 4),
    /'x'; this version has 'philox/,
  );
});
