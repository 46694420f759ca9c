import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { hex, sha256 } from "../device/bytes.js";
import { TensorError, UnknownGenerator } from "../device/errors.js";
import { Flat } from "../device/flat.js";
import { alongStep, perturb, replay } from "../device/replaying.js";
import { write } from "../device/safetensors.js";
import { files, packed } from "./shipped.js";
import { vectors } from "./vectors.js";

const cases = vectors("replaying");
const bundle = await Bundle.open(packed(files(cases.bundle)));
const STEPS = cases.steps.map((step) => ({
  ...step,
  seed: BigInt(step.seed),
}));
const hash = async (tensors) => hex(await sha256(write(tensors)));

test("weights are perturbed along a direction as in Python, bit for bit", async () => {
  for (const { tunable, seed, index, sha256: expected, ...along } of cases.perturbed) {
    const params = new Flat(bundle.manifest.specs(tunable));
    await perturb(params, bundle.weights(), { ...along, seed: BigInt(seed), index: BigInt(index) });
    assert.equal(await hash(params.views), expected);
  }
});

test("weights after the steps of a log are those of Python, bit for bit", async () => {
  for (const [at, expected] of cases.after.entries()) {
    const weights = bundle.weights();
    assert.equal(await hash(await replay(weights, STEPS.slice(0, at + 1), bundle.manifest)), expected);
    assert.equal(await hash(weights), await hash(bundle.weights()));
  }
});

test("replaying in two parts gives the same as replaying at once", async () => {
  const half = await replay(bundle.weights(), STEPS.slice(0, 3), bundle.manifest);
  assert.equal(await hash(await replay(half, STEPS.slice(3), bundle.manifest)), cases.after.at(-1));
});

test("an invalid step is refused", () => {
  const [step] = STEPS;
  assert.throws(() => alongStep({ ...step, scalars: [] }), TensorError);
  assert.throws(() => alongStep({ ...step, seed: 1n << 64n }), TensorError);
  assert.throws(() => alongStep({ ...step, generator: "x" }), UnknownGenerator);
});
