import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { DeviceModel } from "../device/engine.js";
import { WorkStopped } from "../device/errors.js";
import { FewShot } from "../device/kinds/few_shot.js";
import { make } from "../device/kinds/registry.js";
import { RealWorker } from "../device/real_worker.js";
import { wasmRuntime } from "../device/runtime.js";
import { files, packed } from "./shipped.js";

const bundle = await Bundle.open(packed(files("digits-wrn-10-1")));
const runtime = await wasmRuntime({ threads: 1 });
const SAMPLES = 8;
let now = performance.now() + 1e4; // shared by all tests, so that it only goes forward
const data = {
  x: Float32Array.from({ length: SAMPLES * 64 }, (_, i) => Math.sin(i)),
  y: Int32Array.from({ length: SAMPLES }, (_, i) => i % 2),
};

/** A round's work with this `progress` callback; each run of a graph, on one sample, takes long by the clock. */
async function atWork(t, strategy, progress) {
  const ran = [];
  const model = new DeviceModel(bundle, runtime, { batch: 1, watch: { ran: (name) => ran.push(name) } });
  await model.logits(data.x.subarray(0, 64)); // makes the session
  ran.length = 0;
  t.mock.method(performance, "now", () => (now += 100));
  const listener = { progress: (done) => progress({ done, model, ran }), lost: () => 0 };
  const host = { residentBytes: () => 0 };
  const inputs = { offer: { round: 2, rare: [1] }, aside: new Map() };
  const worker = new RealWorker({ name: "dev", model, data, clock: () => 0, host, given: inputs, listener });
  return { model, ran, train: () => worker.train({ strategy }, 5n, 1000) };
}

const few = () => new FewShot({ codec: "", shots: 2, epochs: 1, lr: 0.1, momentum: 0, weight_decay: 0, batch: 4 });
const means = () => make("class-means", { steps: 1, smallest_count: 1 });

for (const kind of [few, means]) {
  test(`a long pass over all samples asks whether to go on, and ends if not: ${kind().name}`, async (t) => {
    const paces = [];
    const { ran, train, model } = await atWork(t, kind(), async ({ done, ran: runs }) => {
      paces.push([done, runs.length]);
      if (runs.length === 3) throw new WorkStopped("the round is not wanted any more");
    });
    await assert.rejects(train(), WorkStopped);
    assert.deepEqual(paces, [[0, 1], [0, 2], [0, 3]]);
    assert.deepEqual(ran, ["forward", "forward", "forward"]);
    await model.logits(data.x); // after the work, `progress` is not called any more
    assert.equal(paces.length, 3);
  });
}

test("runs of the model for others during the work do not ask, and change nothing", async (t) => {
  const alone = await (await atWork(t, means(), async () => {})).train();
  let paces = 0;
  const { train } = await atWork(t, means(), async ({ model }) => {
    paces += 1;
    await model.logits(data.x);
  });
  const update = await train();
  assert.equal(paces, SAMPLES + 1);
  assert.deepEqual(update, alone);
});

test("the classes that the offer names as rare are sent first", async (t) => {
  const kind = make("class-means", { statistics: { most_classes: 1, moments: false } });
  const { contribution } = await (await atWork(t, kind, async () => {})).train();
  const { data: rows, shape } = contribution.tensors.get("class-statistics/rows");
  assert.deepEqual([shape[0], rows[0], rows[2]], [1, 1, SAMPLES / 2]);
});
