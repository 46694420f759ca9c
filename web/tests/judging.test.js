import assert from "node:assert/strict";
import { test } from "node:test";

import { judged } from "../device/judging.js";

const near = (actual, expected) =>
  assert.ok(Math.abs(actual - expected) < 1e-6, `${actual}, expected ${expected}`);

test("a model is judged by right answers and mean cross-entropy, on 500 samples at most", async () => {
  const sizes = [];
  const model = {
    manifest: { labels: ["a", "b"] },
    logits: async (x) => {
      sizes.push(x.length);
      return Float32Array.from({ length: x.length }, (_, i) => (i % 2 ? 0 : x[i])); // (n, 2), two values a sample
    },
  };
  const judgement = await judged(model, { x: Float32Array.of(2, 0, -1, 0, 3, 0), y: Int32Array.of(0, 1, 1) });
  assert.deepEqual([judgement.right, judgement.count], [2, 3]);
  const loss = (logit, other) => Math.log(Math.exp(logit) + Math.exp(other)) - logit;
  near(judgement.loss, (loss(2, 0) + loss(0, -1) + loss(0, 3)) / 3);
  await judged(model, { x: new Float32Array(1400), y: new Int32Array(700) });
  assert.deepEqual(sizes, [6, 1000]);
});
