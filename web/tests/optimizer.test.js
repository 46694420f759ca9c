import assert from "node:assert/strict";
import { test } from "node:test";

import { hex } from "../device/bytes.js";
import { TensorError } from "../device/errors.js";
import { Flat, float32 } from "../device/flat.js";
import { checkAnchor, clip, pull } from "../device/gradients.js";
import { Sgd } from "../device/optimizer.js";
import { vectors } from "./vectors.js";

const cases = vectors("optimizer");
const SPECS = [{ name: "w", shape: [cases.size], dtype: "float32" }];
const bits = (vector) => hex(new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength));

/** The same numbers as in the writer of the vectors. */
function noise(seed) {
  let x = seed;
  return Float32Array.from({ length: cases.size }, () => ((x = (75 * x + 74) % 65537) - 32768) / 10000);
}

function flat(seed) {
  const vector = new Flat(SPECS);
  vector.vector.set(noise(seed));
  return vector;
}

test("steps of SGD are those of Python, bit for bit", () => {
  for (const { lr, momentum, weight_decay: weightDecay, after } of cases.sgd) {
    const params = noise(1);
    const steps = new Sgd(lr, momentum, weightDecay).start(params);
    for (const [at, expected] of after.entries()) {
      const grads = noise(100 + at);
      steps.step(params, grads);
      assert.equal(bits(params), expected);
      assert.deepEqual(grads, noise(100 + at));
    }
  }
});

test("a proximal term pulls as in Python, bit for bit", () => {
  const [params, grads] = [flat(1), flat(2)];
  pull({ weight: cases.pulled.weight, anchor: flat(3).views }, params, grads);
  assert.equal(bits(grads.vector), cases.pulled.grads);
});

test("an anchor that is not among the parameters is refused", () => {
  const term = (name, shape) => ({
    weight: 1,
    anchor: new Map([[name, float32(shape, new Float32Array(2))]]),
  });
  assert.throws(() => checkAnchor(term("v", [2]), flat(1)), /anchor v is not among the 1 trained tensors/);
  assert.throws(() => checkAnchor(term("w", [2]), flat(1)), TensorError);
});

test("a gradient is scaled down to the largest norm, and not changed below it", () => {
  const grads = Float32Array.of(3, 4);
  clip(grads, 6);
  assert.deepEqual([...grads], [3, 4]);
  clip(grads, 1);
  assert.ok(Math.abs(Math.hypot(...grads) - 1) < 1e-6);
  assert.ok(Math.abs(grads[0] / grads[1] - 0.75) < 1e-6);
  const none = Float32Array.of(1, NaN);
  clip(none, 1);
  assert.ok(none.every(Number.isNaN));
});
