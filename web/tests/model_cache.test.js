/** What a device holds of a task, and what it makes of what is offered to it. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Blobs, named } from "../device/blobs.js";
import { Bundle } from "../device/bundle.js";
import { sha256 } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { BlobError, StaleBase, TensorError, UnusableBase } from "../device/errors.js";
import { Holdings } from "../device/model_cache.js";
import { write } from "../device/safetensors.js";
import { ZIP } from "./scripted.js";

const bundle = await Bundle.open(ZIP);

/** Those of the bundle, `by` more in the first value of each tensor; of one tensor where it is named. */
function weightsOf(by, only = "") {
  const weights = bundle.weights();
  for (const [name, one] of weights) {
    if (!only || name === only) weights.set(name, { ...one, data: one.data.with(0, one.data[0] + by) });
  }
  return weights;
}

/** They as a base in parts, and the bytes of those. */
async function offered(weights, more = {}) {
  const of = (specs) => write(new Map(specs.map(({ name }) => [name, weights.get(name)])));
  const parts = bundle.manifest.parts().map(of);
  const sha = await sha256(write(weights));
  const checkpoint = await Promise.all(parts.map(named));
  return { base: { checkpoint, sha, line: sha.slice(0, 8), steps: 0, at: 0, tail: [], log: [], ...more }, parts };
}

async function held(contents = []) {
  const blobs = await Blobs.open(new MemoryDisk());
  for (const content of contents) await blobs.put(content);
  return new Holdings(blobs);
}

const values = (tensors) => Object.fromEntries([...tensors].map(([name, { data }]) => [name, data]));

test("a base is what its parts are, and what is there of them need not be fetched", async () => {
  const weights = weightsOf(1);
  const { base, parts } = await offered(weights);
  const holdings = await held(parts.slice(1));
  assert.deepEqual(await holdings.missing(base, null), [base.checkpoint[0]]);
  await assert.rejects(holdings.base(base, bundle.manifest), BlobError);
  await holdings.blobs.put(parts[0]);
  assert.deepEqual(await holdings.missing(base, null), []);
  assert.deepEqual(values(await holdings.base(base, bundle.manifest)), values(weights));
});

test("of a base, what is as it is in the bundle is taken from there, and nothing else is kept", async () => {
  const changed = bundle.manifest.head.weight;
  const { base } = await offered(weightsOf(1, changed));
  const own = (await offered(bundle.weights())).base.checkpoint;
  const holdings = await held();
  await holdings.takeParts(bundle, base);
  const lacking = await holdings.missing(base, null);
  const at = bundle.manifest.parts().findIndex((specs) => specs.some(({ name }) => name === changed));
  assert.deepEqual(lacking, [base.checkpoint[at]]);
  assert.equal(holdings.blobs.has(own[at]), false);
});

test("who has the bundle stands where its line begins", async () => {
  const { base } = await offered(bundle.weights(), { steps: 3, at: 3 });
  const holdings = await held();
  const tail = [{ round: 1, generator: "philox4x64-popcount/1", tunable: "head", lr: 0.01, width: 1, form: "f2" }];
  const walked = { ...base, tail: [{ ...tail[0], scalars: new Uint8Array(6), seeds: 5n, shares: new Uint8Array() }] };
  assert.deepEqual(await holdings.missing(walked, null), walked.checkpoint);
  await holdings.takeParts(bundle, walked);
  assert.deepEqual(await holdings.missing(walked, null), []);
  // three steps by nothing lead nowhere else
  assert.deepEqual(values(await holdings.base(walked, bundle.manifest)), values(bundle.weights()));
});

test("a base that is not the aggregator's is not worked on, and its hash has four bytes at least", async () => {
  const { base, parts } = await offered(weightsOf(1));
  const holdings = await held(parts);
  const isNot = /base model after 0 steps is not the aggregator's/;
  for (const sha of [new Uint8Array(32), base.sha.slice(0, 3), new Uint8Array()]) {
    await assert.rejects(holdings.base({ ...base, sha }, bundle.manifest), (error) => {
      return error instanceof UnusableBase && isNot.test(error.message);
    });
  }
  const short = { ...base, sha: base.sha.slice(0, 4) };
  assert.deepEqual(values(await holdings.base(short, bundle.manifest)), values(weightsOf(1)));
});

test("where the steps since lead elsewhere than to the aggregator's model, the device begins anew", async () => {
  const { base, parts } = await offered(weightsOf(1));
  const holdings = await held(parts);
  await holdings.base(base, bundle.manifest);
  const other = { ...base, sha: new Uint8Array(32).fill(9) };
  await assert.rejects(holdings.base(other, bundle.manifest), (error) => {
    return error instanceof StaleBase && /beginning anew/.test(error.message);
  });
  await assert.rejects(holdings.base(other, bundle.manifest), UnusableBase);
  assert.deepEqual(values(await holdings.base(base, bundle.manifest)), values(weightsOf(1)));
});

test("a checkpoint of another model is refused with the difference", async () => {
  const weights = weightsOf(0);
  weights.delete(bundle.manifest.head.weight);
  const part = write(weights);
  const { base } = await offered(weightsOf(0));
  const holdings = await held([part]);
  const wrong = { ...base, checkpoint: [await named(part)] };
  await assert.rejects(holdings.base(wrong, bundle.manifest), (error) => {
    return error instanceof TensorError && error.message.includes(bundle.manifest.head.weight);
  });
});

test("what comes beside a base is fetched with it", async () => {
  const aside = write(new Map([["figures", { dtype: "float32", shape: [2], data: Float32Array.of(1, 2) }]]));
  const { base, parts } = await offered(weightsOf(1));
  const holdings = await held(parts);
  const blob = await named(aside);
  assert.deepEqual(await holdings.missing(base, blob), [blob]);
  await holdings.blobs.put(aside);
  assert.deepEqual([...(await holdings.aside(blob)).get("figures").data], [1, 2]);
  assert.equal((await holdings.aside(null)).size, 0);
});
