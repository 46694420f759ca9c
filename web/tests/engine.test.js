import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { DeviceModel } from "../device/engine.js";
import { BundleError, EngineError, TensorError } from "../device/errors.js";
import { float32 } from "../device/flat.js";
import { wasmRuntime } from "../device/runtime.js";
import { files, packed } from "./shipped.js";

const bundle = await Bundle.open(packed(files("digits-wrn-10-1")));
const runtime = await wasmRuntime({ threads: 1 });
const SAMPLES = 7;
const x = Float32Array.from({ length: SAMPLES * 64 }, (_, i) => Math.sin(i));
const y = Int32Array.from({ length: SAMPLES }, (_, i) => (3 * i) % 10);
const near = (left, other, by) => assert.ok(Math.abs(left - other) <= by, `${left} is not ${other} to ${by}`);

test("batches of any size give the same logits", async () => {
  const model = new DeviceModel(bundle, runtime);
  const few = new DeviceModel(bundle, runtime, { batch: 3 });
  const [all, other] = [await model.logits(x), await few.logits(x)];
  assert.equal(all.length, SAMPLES * 10);
  all.forEach((value, i) => near(other[i], value, 1e-5));
  assert.equal((await model.logits(new Float32Array(0))).length, 0);
});

test("waiting tasks of the thread run between the runs of many samples", async (t) => {
  const model = new DeviceModel(bundle, runtime, { batch: 1 });
  await model.features(x);
  let now = performance.now();
  t.mock.method(performance, "now", () => (now += 100)); // each run takes long by the clock
  let came = 0;
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => port2.postMessage((came += 1));
  port2.postMessage(came);
  await model.features(x);
  port1.close();
  assert.ok(came >= SAMPLES - 1, `${came} times in ${SAMPLES} runs`);
});

test("a gradient is the slope of the loss", async () => {
  const model = new DeviceModel(bundle, runtime);
  const [trainer, probe] = [await model.trainer("mid"), await model.probe("mid")];
  await trainer.lossAndGrads(x, y);
  const { vector } = trainer.grads;
  const length = Math.hypot(...vector);
  const eps = 1e-3;
  const losses = [];
  for (const sign of [1, -1]) {
    probe.params.vector.forEach((_, i) => {
      probe.params.vector[i] = trainer.params.vector[i] + (sign * eps * vector[i]) / length;
    });
    losses.push(await probe.loss(x, y));
  }
  near((losses[0] - losses[1]) / (2 * eps), length, 1e-2 * length);
});

test("more samples than one run takes are cut into micro-batches with the same mean", async () => {
  const whole = await new DeviceModel(bundle, runtime).trainer("all");
  const parts = await new DeviceModel(bundle, runtime, { batch: 2 }).trainer("all");
  near(await parts.lossAndGrads(x, y), await whole.lossAndGrads(x, y), 1e-6);
  whole.grads.vector.forEach((value, i) => near(parts.grads.vector[i], value, 2e-6));
});

test("new weights are used by everything that is made after them", async () => {
  const model = new DeviceModel(bundle, runtime);
  const before = await model.logits(x);
  const first = await model.trainer("head");
  const bias = model.weights.get("head.bias").data.map((value) => value + 1);
  await model.load(new Map([["head.bias", float32([10], bias)]]));
  const after = await model.logits(x);
  before.forEach((value, i) => near(after[i], value + 1, 1e-5));
  assert.notDeepEqual(first.params.vector, (await model.trainer("head")).params.vector);
  await assert.rejects(model.load(new Map([["head.bias", float32([9], new Float32Array(9))]])), TensorError);
});

test("a session is opened once, and again after its memory was freed", async () => {
  const loads = [];
  const runs = [];
  const watch = {
    willLoad: (name) => loads.push(name),
    ran: (name, _, samples) => runs.push([name, samples]),
  };
  const model = new DeviceModel(bundle, runtime, { batch: 4, watch });
  await Promise.all([model.logits(x), model.features(x)]);
  await model.unload();
  await model.logits(x);
  assert.deepEqual(loads, ["forward", "forward"]);
  assert.deepEqual(runs.slice(-2), [
    ["forward", 4],
    ["forward", 3],
  ]);
});

test("a watch may refuse a graph, and the graph can be tried again", async () => {
  let full = true;
  const refuse = () => {
    if (full) throw new EngineError("no room");
  };
  const model = new DeviceModel(bundle, runtime, { watch: { willLoad: refuse } });
  await assert.rejects(model.logits(x), /no room/);
  full = false;
  assert.equal((await model.logits(x)).length, SAMPLES * 10);
});

test("wrong arrays are refused with their sizes", async () => {
  const model = new DeviceModel(bundle, runtime);
  await assert.rejects(
    model.logits(new Float32Array(65)),
    /x has 65 values, digits-wrn-10-1 takes 64 a sample/,
  );
  await assert.rejects(model.logits(new Int32Array(64)), EngineError);
  const trainer = await model.trainer("head");
  await assert.rejects(trainer.lossAndGrads(x, y.subarray(1)), /y is \(6,\), expected \(7,\)/);
  await assert.rejects(
    trainer.lossAndGrads(
      x,
      y.map(() => 10),
    ),
    /y holds label 10, .* has labels 0 to 9/,
  );
  const extras = new Map([["z", float32([1], new Float32Array(1))]]);
  await assert.rejects(trainer.lossAndGrads(x, y, extras), /extra inputs are z, expected none/);
  await assert.rejects(model.trainer("bias"), BundleError);
});

test("a graph that the library refuses is an error of one line", async () => {
  await assert.rejects(runtime.session(new Uint8Array(9), new Map(), "graph x"), (error) => {
    return (
      error instanceof EngineError &&
      error.message.startsWith("ONNX Runtime, graph x: ") &&
      !error.message.includes("\n")
    );
  });
});

test("the runtime says how graphs are run", () => {
  assert.match(runtime.name, /^onnxruntime-web \d+\.\d+\.\d+ wasm$/);
  assert.match(runtime.why, /^WASM on one thread/);
});
