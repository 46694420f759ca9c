import assert from "node:assert/strict";
import { test } from "node:test";

import { Generator, rngOf } from "../device/randomness.js";
import { vectors } from "./vectors.js";

const cases = vectors("randomness");
const ITEMS = Int32Array.of(5, 7, 9, 11, 2 ** 31 - 1);

/** The draws in the order of the writer of the vectors. */
function drawn(rng, below) {
  return {
    below,
    mixed: [...rng.permutation(ITEMS)],
    integers: below.map((most) => String(rng.integers(BigInt(most)))),
    order: [...rng.permutation(23)],
    alone: [...rng.permutation(1)],
    shares: [...rng.random(3)],
    last: [...rng.permutation(300)].slice(-5),
  };
}

test("a generator draws what numpy's does from the same seed", () => {
  for (const { seed, ...expected } of cases.generators) {
    assert.deepEqual(drawn(new Generator(BigInt(seed)), expected.below), expected);
  }
});

test("a run's randomness is that of its seed and device, as in Python", async () => {
  for (const { seed, device, ...expected } of cases.runs) {
    assert.deepEqual(drawn(await rngOf({ seed: BigInt(seed), device }), expected.below), expected);
  }
});

test("a permutation does not change its argument", () => {
  const items = Int32Array.of(1, 2, 3, 4, 5, 6, 7, 8);
  const mixed = new Generator(3n).permutation(items);
  assert.deepEqual([...items], [1, 2, 3, 4, 5, 6, 7, 8]);
  assert.deepEqual([...mixed].sort(), [...items]);
});
