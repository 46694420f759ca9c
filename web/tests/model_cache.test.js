/** Tests which blobs a device fetches for an offer, and how it makes the base from them. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Blobs, blobOf } from "../device/blobs.js";
import { Bundle } from "../device/bundle.js";
import { sha256 } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { BlobError, StaleBase, TensorError, UnusableBase } from "../device/errors.js";
import { ModelCache } from "../device/model_cache.js";
import { write } from "../device/safetensors.js";
import { ZIP } from "./scripted.js";

const bundle = await Bundle.open(ZIP);

/** The bundle's weights with `by` added to the first value of each tensor, or of one tensor if it is named. */
function weightsOf(by, only = "") {
  const weights = bundle.weights();
  for (const [name, tensor] of weights) {
    if (!only || name === only) weights.set(name, { ...tensor, data: tensor.data.with(0, tensor.data[0] + by) });
  }
  return weights;
}

/** These weights as a base in parts, and the bytes of the parts. */
async function offered(weights, more = {}) {
  const of = (specs) => write(new Map(specs.map(({ name }) => [name, weights.get(name)])));
  const parts = bundle.manifest.parts().map(of);
  const sha = await sha256(write(weights));
  const checkpoint = await Promise.all(parts.map(blobOf));
  return { base: { checkpoint, sha, line: sha.slice(0, 8), steps: 0, at: 0, tail: [], log: [], ...more }, parts };
}

async function cacheOf(contents = []) {
  const blobs = await Blobs.open(new MemoryDisk());
  for (const content of contents) await blobs.put(content);
  return new ModelCache(blobs);
}

const values = (tensors) => Object.fromEntries([...tensors].map(([name, { data }]) => [name, data]));

test("a base is made of its parts, and parts that are here are not fetched", async () => {
  const weights = weightsOf(1);
  const { base, parts } = await offered(weights);
  const cache = await cacheOf(parts.slice(1));
  assert.deepEqual(await cache.missing(base, null), [base.checkpoint[0]]);
  await assert.rejects(cache.base(base, bundle.manifest), BlobError);
  await cache.blobs.put(parts[0]);
  assert.deepEqual(await cache.missing(base, null), []);
  assert.deepEqual(values(await cache.base(base, bundle.manifest)), values(weights));
});

test("parts of a base that are as in the bundle are taken from it, and nothing else is stored", async () => {
  const changed = bundle.manifest.head.weight;
  const { base } = await offered(weightsOf(1, changed));
  const own = (await offered(bundle.weights())).base.checkpoint;
  const cache = await cacheOf();
  await cache.takeParts(bundle, base);
  const lacking = await cache.missing(base, null);
  const at = bundle.manifest.parts().findIndex((specs) => specs.some(({ name }) => name === changed));
  assert.deepEqual(lacking, [base.checkpoint[at]]);
  assert.equal(cache.blobs.has(own[at]), false);
});

test("a device with the bundle has the replay state at the beginning of its line", async () => {
  const { base } = await offered(bundle.weights(), { steps: 3, at: 3 });
  const cache = await cacheOf();
  const tail = [{ round: 1, generator: "philox4x64-popcount/1", tunable: "head", lr: 0.01, width: 1, form: "f2" }];
  const walked = { ...base, tail: [{ ...tail[0], scalars: new Uint8Array(6), seeds: 5n, shares: new Uint8Array() }] };
  assert.deepEqual(await cache.missing(walked, null), walked.checkpoint);
  await cache.takeParts(bundle, walked);
  assert.deepEqual(await cache.missing(walked, null), []);
  // three steps with scalars of 0 change no weight
  assert.deepEqual(values(await cache.base(walked, bundle.manifest)), values(bundle.weights()));
});

test("a base that is not the aggregator's is not worked on, and its hash must have at least four bytes", async () => {
  const { base, parts } = await offered(weightsOf(1));
  const cache = await cacheOf(parts);
  const isNot = /base model after 0 steps is not the aggregator's/;
  for (const sha of [new Uint8Array(32), base.sha.slice(0, 3), new Uint8Array()]) {
    await assert.rejects(cache.base({ ...base, sha }, bundle.manifest), (error) => {
      return error instanceof UnusableBase && isNot.test(error.message);
    });
  }
  const short = { ...base, sha: base.sha.slice(0, 4) };
  assert.deepEqual(values(await cache.base(short, bundle.manifest)), values(weightsOf(1)));
});

test("if replaying does not lead to the aggregator's model, the device begins at the checkpoint", async () => {
  const { base, parts } = await offered(weightsOf(1));
  const cache = await cacheOf(parts);
  await cache.base(base, bundle.manifest);
  const other = { ...base, sha: new Uint8Array(32).fill(9) };
  await assert.rejects(cache.base(other, bundle.manifest), (error) => {
    return error instanceof StaleBase && /beginning anew/.test(error.message);
  });
  await assert.rejects(cache.base(other, bundle.manifest), UnusableBase);
  assert.deepEqual(values(await cache.base(base, bundle.manifest)), values(weightsOf(1)));
});

test("a checkpoint of another model is refused with the tensor that differs", async () => {
  const weights = weightsOf(0);
  weights.delete(bundle.manifest.head.weight);
  const part = write(weights);
  const { base } = await offered(weightsOf(0));
  const cache = await cacheOf([part]);
  const wrong = { ...base, checkpoint: [await blobOf(part)] };
  await assert.rejects(cache.base(wrong, bundle.manifest), (error) => {
    return error instanceof TensorError && error.message.includes(bundle.manifest.head.weight);
  });
});

test("the tensors beside a base are fetched with it", async () => {
  const aside = write(new Map([["figures", { dtype: "float32", shape: [2], data: Float32Array.of(1, 2) }]]));
  const { base, parts } = await offered(weightsOf(1));
  const cache = await cacheOf(parts);
  const blob = await blobOf(aside);
  assert.deepEqual(await cache.missing(base, blob), [blob]);
  await cache.blobs.put(aside);
  assert.deepEqual([...(await cache.aside(blob)).get("figures").data], [1, 2]);
  assert.equal((await cache.aside(null)).size, 0);
});
