import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { fromHex } from "../device/bytes.js";
import { expected, train } from "../device/class_statistics.js";
import { rowBytes } from "../device/class_sums.js";
import { DeviceModel } from "../device/engine.js";
import { KindError, OutOfTime } from "../device/errors.js";
import { check } from "../device/flat.js";
import { fromHalf } from "../device/half.js";
import { pace } from "../device/kinds/kind.js";
import { make, supportedKinds } from "../device/kinds/registry.js";
import { prepare } from "../device/preparing.js";
import { wasmRuntime } from "../device/runtime.js";
import { files, packed } from "./shipped.js";
import { vectors } from "./vectors.js";

const cases = vectors("kinds");
const NEAR = 1e-5; // of results of an engine: the difference over the number, or over 1 if that is larger
const NEAR_HALF = 2 ** -11; // of 16-bit numbers up to 1: one step
const WIDTH = 64; // features of the bundle
const NEAR_SCALARS = 5e-3; // of scalars, each of which is a difference of two losses over 2 eps
const bundle = await Bundle.open(packed(files(cases.bundle.name)));
const runtime = await wasmRuntime({ threads: 1 });
const x = Float32Array.from(prepare(bundle.manifest.input, fromHex(cases.data.raw)));
const data = { x, y: Int32Array.from(cases.data.y) };
const aside = new Map(
  Object.entries(cases.aside).map(([name, { shape, values }]) => [
    name,
    { dtype: "float32", shape, data: new Float32Array(fromHex(values).buffer) },
  ]),
);
const RUN = { seed: BigInt(cases.data.seed), device: cases.data.device, clock: () => 0, deadline: 1, aside };

/** Numbers evenly from the first to the last, as in the writer of the vectors. */
function few({ data: values }, count) {
  const last = values.length - 1;
  const places = Array.from({ length: count }, (_, i) => Math.trunc((i * last) / Math.max(1, count - 1)));
  return places.map((place) => values[place]);
}

/** Checks that labels and counts are equal, and means up to one step of their rounding. */
function sameRows({ shape: [, bytes], data: rows }, expectedRows) {
  const view = new DataView(rows.buffer);
  const isShort = bytes === rowBytes(WIDTH, "int8");
  expectedRows.forEach(({ label, count, mean }, place) => {
    const at = place * bytes;
    assert.deepEqual([view.getUint16(at, true), view.getUint32(at + 2, true)], [label, count]);
    const largest = view.getFloat32(at + 6, true);
    const numbers = Array.from({ length: WIDTH }, (_, i) =>
      isShort ? view.getInt8(at + 10 + i) / 127 : fromHalf(view.getUint16(at + 10 + 2 * i, true)),
    );
    few({ data: numbers }, mean.length).forEach((value, i) => {
      const off = Math.abs(value * largest - mean[i]);
      assert.ok(off <= (isShort ? 1 / 127 : NEAR_HALF) * largest + NEAR, `class ${label}: ${off}`);
    });
  });
}

for (const [at, example] of cases.made.entries()) {
  test(`a contribution of ${example.kind} ${example.form} is Python's (${at})`, async () => {
    const strategy = make(example.kind, example.settings);
    assert.deepEqual(
      strategy.variants().map((form) => form.form),
      example.forms,
    );
    const [richest] = strategy.variants();
    const model = new DeviceModel(bundle, runtime);
    const update = await train(richest, model, data, RUN);
    await model.unload();
    check(update.tensors, expected(richest, bundle.manifest));
    const { kind, form, numExamples } = update;
    assert.deepEqual(
      { kind, form, numExamples },
      { kind: example.kind, form: example.form, numExamples: example.num_examples },
    );
    if (example.train_loss === null) assert.ok(Number.isNaN(update.trainLoss));
    else assert.ok(Math.abs(update.trainLoss - example.train_loss) < NEAR * example.train_loss);
    const sent = { ...example.statistics, ...example.tensors };
    assert.deepEqual([...update.tensors.keys()].sort(), Object.keys(sent).sort());
    for (const [name, { dtype, shape, values, rows }] of Object.entries(sent)) {
      const tensor = update.tensors.get(name);
      assert.deepEqual([tensor.dtype, tensor.shape], [dtype, shape]);
      if (rows) {
        sameRows(tensor, rows);
        continue;
      }
      few(tensor, values.length).forEach((value, i) => {
        const read = dtype === "float16" ? fromHalf(value) : value;
        const step = dtype === "float16" ? NEAR_HALF : NEAR;
        const most = (name === "g" ? NEAR_SCALARS : step) * Math.max(1, Math.abs(values[i]));
        assert.ok(Math.abs(read - values[i]) <= most, `${name}: ${read}, expected ${values[i]}`);
      });
    }
  });
}

test("kinds have the settings and defaults of Python", () => {
  for (const [kind, settings] of Object.entries(cases.fields))
    assert.deepEqual({ ...make(kind).settings }, settings);
});

test("settings that Python refuses are refused", () => {
  for (const { kind, settings } of cases.refused) {
    assert.throws(() => make(kind, settings), KindError, `${kind} takes ${JSON.stringify(settings)}`);
  }
});

test("values that are no settings, or have 64-bit numbers where others are expected, are refused", () => {
  assert.throws(() => make("full", { lr: [2n ** 63n] }), KindError);
  assert.throws(() => make("full", { codec: { deep: [1n] } }), KindError);
  for (const none of [null, 3n, "lr", true, [1]]) assert.throws(() => make("full", none), KindError);
});

test("settings that a browser does not support are refused with the reason, never ignored", () => {
  const dp = { epsilon: 5, delta: 1e-3, max_norm: 1, rounds: 50 };
  const terms = (table) => ({ terms: table });
  assert.throws(() => make("full", terms({ "dp-sgd": dp })), /terms.dp-sgd is set: a browser does not train with it/);
  assert.throws(() => make("peft", terms({ moon: { mu: 0.1 } })), /terms.moon is set: a browser does not train with it/);
  assert.throws(() => make("full", terms({ fedprox: { mu: 0 } })), /terms.fedprox.mu is 0, expected more than 0/);
  assert.throws(() => make("width-slice", { members: ["half"] }), /no kind of update called 'width-slice'/);
});

test("kinds that cannot be done here are passed over, and that is logged", () => {
  const lines = [];
  const kinds = [
    { name: "prototypes", settings: {} },
    { name: "full", settings: { terms: { moon: { mu: 1 } } } },
    { name: "few-shot", settings: { shots: 3n } },
  ];
  const [only, ...others] = supportedKinds(kinds, (text) => lines.push(text));
  assert.deepEqual([only.name, only.settings.shots, others], ["few-shot", 3, []]);
  assert.equal(lines.length, 2);
  assert.throws(() => supportedKinds(kinds.slice(0, 2)), KindError);
  assert.throws(() => supportedKinds([]), /no kind of update is offered/);
});

test("the richest form comes first", () => {
  const forms = (kind, settings) =>
    make(kind, settings)
      .variants()
      .map((form) => form.form);
  assert.deepEqual(forms("full", { epochs: 10, reduced_epochs: 2, graded: true }), [
    "",
    "epochs=5",
    "epochs=2",
  ]);
  assert.deepEqual(forms("full", { epochs: 5, graded: true }), ["", "epochs=2", "epochs=1"]);
  assert.deepEqual(forms("entropy-subset", { shares: [0.1, 0.5] }), ["50%", "10%"]);
  assert.deepEqual(forms("peft", { tunables: ["bias", "head"] }), ["bias", "head"]);
  const peft = { tunables: ["bias", "head"], epochs: 4, reduced_epochs: 1 };
  assert.deepEqual(forms("peft", peft), ["bias", "bias epochs=1", "head", "head epochs=1"]);
});

test("training that the clock stops after some epochs gives the form of so many epochs", () => {
  const [whole, reduced] = make("full", { epochs: 10, reduced_epochs: 2 }).variants();
  assert.equal(whole.stopped(0.1), null);
  assert.equal(whole.stopped(0.75).form, "epochs=7");
  assert.equal(whole.stopped(1), whole);
  assert.equal(reduced.stopped(1), null);
});

test("training ends after the last whole epoch that there is time for", async () => {
  let reports = 0; // 3 steps an epoch: the eighth, in the third epoch, comes late
  const clock = () => (reports <= 7 ? 0.1 * reports : 10 * reports);
  const progress = () => void (reports += 1);
  const [whole] = make("full", { epochs: 6, reduced_epochs: 1, batch: 16, lr: 0.01 }).variants();
  const model = new DeviceModel(bundle, runtime);
  const update = await whole.train(model, data, { ...RUN, clock, progress, deadline: 8 });
  assert.equal(update.form, "epochs=2");
  const [alone] = make("full", { epochs: 2, batch: 16, lr: 0.01 }).variants();
  const other = await alone.train(model, data, RUN);
  assert.deepEqual(update.tensors.get("head.bias").data, other.tensors.get("head.bias").data);
  reports = 6;
  await assert.rejects(whole.train(model, data, { ...RUN, clock, progress, deadline: 1 }), OutOfTime);
});

test("work that would end late is given up as soon as that is projected", async () => {
  const run = (now, deadline, lostS = 0) => ({ ...RUN, clock: () => now, deadline, lost: () => lostS });
  await pace(run(10, 100), { began: 0, done: 0.1 });
  await assert.rejects(pace(run(10, 99), { began: 0, done: 0.1 }), (error) => {
    return (
      error instanceof OutOfTime &&
      error.wholeS === 100 &&
      error.message === "10% done, would end 1.0 s after the deadline"
    );
  });
  await pace(run(10, 70), { began: 0, done: 0.05 }); // in the first tenth, the projection is divided by three
  await assert.rejects(
    pace(run(10, 100, 5), { began: 0, done: 0.1, of: 0.5 }),
    (error) => error.wholeS === 200,
  );
  await pace(run(10, 5), { began: 0, done: 1 });
});

test("few-shot training with statistics runs the samples through the network once", async () => {
  const model = new DeviceModel(bundle, runtime);
  const features = model.features.bind(model);
  let passes = 0;
  model.features = (inputs) => ((passes += 1), features(inputs));
  const update = await train(make("few-shot", { epochs: 1, statistics: {} }), model, data, RUN);
  await model.unload();
  assert.equal(passes, 1);
  assert.equal(update.numExamples, data.y.length);
});

test("all of a pre-trained network is trained in smaller steps, unless the task bounds them", () => {
  const bounds = (kind, settings) =>
    [false, true].map((pretrained) => {
      const manifest = Object.assign(Object.create(bundle.manifest), { pretrained });
      return make(kind, settings).clipNormFor(manifest);
    });
  assert.deepEqual(bounds("full", {}), [2, 0.5]);
  assert.deepEqual(bounds("full", { clip_norm: 0 }), [0, 0]);
  assert.deepEqual(bounds("entropy-subset", {}), [2, 2]);
  assert.deepEqual(bounds("peft", { tunable: "head" }), [2, 2]);
});
