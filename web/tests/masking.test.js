import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { fromHex, hex, sha256 } from "../device/bytes.js";
import { withClassStatistics, withoutMoments } from "../device/class_statistics.js";
import { float32, sizeOf } from "../device/flat.js";
import { make } from "../device/kinds/registry.js";
import { bits, layoutOf } from "../device/masking/layout.js";
import { CHUNK, MaskedVector } from "../device/masking/masks.js";
import { encodedPurpose, seal } from "../device/masking/seeds.js";
import { write } from "../device/masking/sums.js";
import { read } from "../device/safetensors.js";
import { files, packed } from "./shipped.js";
import { vectors } from "./vectors.js";

const cases = { seeds: vectors("masking/seeds"), masks: vectors("masking/masks"), sums: vectors("masking/sums") };
const bundle = await Bundle.open(packed(files(cases.sums.bundle)));
const base = bundle.weights();
const SEED = fromHex(cases.masks.seeds[0]);
const MASKS = { capacity: 64, noise_milli: 0 };

for (const [at, example] of cases.seeds.sealed.entries()) {
  test(`the seeds for ${example.helpers.length} helpers, and the mask, are Python's (${at})`, async () => {
    const { mask, seeds } = await seal(fromHex(example.secret), example.helpers.map(fromHex), example.purpose);
    assert.equal(hex(encodedPurpose(example.purpose)), example.encoded);
    assert.equal(hex(mask.key), example.key);
    assert.deepEqual([mask.tags.map(hex), seeds.map(hex)], [example.tags, example.seeds]);
  });
}

test("a helper's key that is no point is refused", async () => {
  const { purpose } = cases.seeds.sealed[0];
  const wrong = seal(SEED, [new Uint8Array(32)], purpose);
  await assert.rejects(wrong, { name: "MaskError", message: /not a valid key for a mask/ });
});

for (const { values, sums, start, end, sha256: sha } of cases.masks.masked) {
  test(`keystreams are added to ${values} values and ${sums} sums as in Python`, async () => {
    const vector = new MaskedVector(values, sums);
    vector.bytes.fill(255);
    vector.addMasks(cases.masks.seeds.map(fromHex));
    assert.equal(hex(vector.bytes.subarray(0, 64)), start);
    assert.equal(hex(vector.bytes.slice(-64)), end);
    assert.equal(hex(await sha256(vector.bytes)), sha);
  });
}

test("chunks are as long as in Python", () => {
  assert.equal(CHUNK, cases.masks.chunk);
});

test("whole numbers of 63 bits and their negatives fill two words", () => {
  const numbers = [0, 1, -1, 2 ** 32, -(2 ** 32) - 5, 2 ** 53 - 1, 2 ** 62, -(2 ** 62), -(2 ** 62) + 2 ** 10];
  const vector = new MaskedVector(1, numbers.length);
  numbers.forEach((number, at) => vector.setSum(at, number));
  const read64 = new DataView(vector.bytes.buffer);
  numbers.forEach((number, at) => assert.equal(read64.getBigInt64(4 + 8 * at, true), BigInt(number)));
});

/** Numbers between -0.5 and 0.5, as in the writer of the vectors. */
function noise(seed, count) {
  let state = seed;
  return Array.from({ length: count }, () => {
    state = (75 * state + 74) % 65537;
    return state / 65536 - 0.5;
  });
}

/** @returns {import("../device/flat.js").Tensor} */
function tensor({ name, shape, dtype }, scale, seed) {
  const drawn = noise(seed, sizeOf(shape)).map((value) => scale * value);
  if (dtype === "int32") return { dtype, shape, data: Int32Array.from(drawn, Math.abs) };
  const start = base.get(name)?.data;
  return float32(shape, Float32Array.from(drawn, (value, i) => (start ? start[i] + value : value)));
}

/** An update as in the writer of the vectors, with the form that made it. */
function weighed(example) {
  const kind = make(example.kind, example.settings);
  const strategy = kind.variants().find(({ form }) => form === example.form) ?? kind;
  const specs = strategy.expected(bundle.manifest);
  const own = specs.map((spec, i) => [spec.name, tensor(spec, example.scale, example.seed + i)]);
  const sent = example.statistics ? read(fromHex(example.statistics)) : [];
  const trainLoss = example.loss === null ? NaN : Number(example.loss);
  const tensors = new Map([...own, ...sent]);
  const update = { kind: example.kind, form: strategy.form, tensors, numExamples: example.examples, trainLoss };
  return { update, strategy, mostWeight: example.most_weight, kind };
}

for (const example of cases.sums.written) {
  test(`an update is written in the same integers as in Python: ${example.kind} ${JSON.stringify(example.settings)} (${example.seed})`, async () => {
    const inputs = weighed(example);
    const layout = layoutOf(inputs.strategy, bundle.manifest, base, example);
    const described = layout.tensors.map(({ shape, bound, exponent }) => [sizeOf(shape), bound, exponent]);
    assert.deepEqual(described, example.values);
    assert.deepEqual(layout.exponents, example.exponents);
    assert.deepEqual(layout.sums.map(({ shape, boundBits, exponent }) => [sizeOf(shape), boundBits, exponent]), example.sums);
    const { vector, note } = write(inputs, layout, example.most_norm);
    assert.equal(note, example.note);
    assert.deepEqual([...vector.values.subarray(0, 8)], example.first_values);
    const numbers = new DataView(vector.bytes.buffer, 4 * layout.values);
    example.first_sums.forEach((number, at) => assert.equal(`${numbers.getBigUint64(8 * at, true)}`, number, `sum ${at}`));
    assert.equal(hex(await sha256(vector.bytes)), example.sha256);
  });
}

const plain = cases.sums.written[0];

test("masks that are subtracted leave the update", () => {
  const inputs = weighed(plain);
  const layout = layoutOf(inputs.strategy, bundle.manifest, base, plain);
  const [masked, mask] = [write(inputs, layout).vector, new MaskedVector(layout.values, layout.numbers)];
  for (const vector of [masked, mask]) vector.addMasks([SEED]);
  const left = masked.values.map((value, at) => value - mask.values[at]);
  assert.deepEqual(left, write(inputs, layout).vector.values);
  assert.deepEqual([...left.subarray(-4)], [1, 1, 1, 1]);
});

test("a norm bound holds for all changes together", () => {
  const inputs = { ...weighed(plain), mostWeight: plain.examples };
  const layout = layoutOf(inputs.strategy, bundle.manifest, base, plain);
  const { vector, note } = write(inputs, layout, 0.25);
  assert.match(note, /^its changes were shortened to 0\.1\d+ of their length$/);
  const values = new Int32Array(vector.bytes.buffer, 0, layout.values - 4);
  let [at, squares] = [0, 0];
  for (const { shape, exponent } of layout.tensors) {
    for (const value of values.subarray(at, (at += sizeOf(shape)))) squares += (value * 2 ** -exponent) ** 2;
  }
  assert.ok(Math.abs(Math.sqrt(squares) - 0.25) < 1e-4);
});

test("an update that is not finite, or lacks a tensor, is refused", () => {
  const inputs = weighed(plain);
  const layout = layoutOf(inputs.strategy, bundle.manifest, base, plain);
  const [[name, whole], ...others] = inputs.update.tensors;
  const refused = (tensors, message) => {
    const update = { ...inputs.update, tensors: new Map(tensors) };
    assert.throws(() => write({ ...inputs, update }, layout), { name: "MaskError", message });
  };
  const broken = whole.data.slice().fill(NaN, 3, 4);
  refused([[name, { ...whole, data: broken }], ...others], `${name} has non-finite values`);
  refused(others, `${name} is missing, expected (${whole.shape.join(", ")})`);
  refused([[name, float32([2], Float32Array.of(1, 2))], ...others], `${name} is (2,), expected (${whole.shape.join(", ")})`);
});

test("an update of a base that is not finite is refused", () => {
  const inputs = weighed(plain);
  const [[name, whole]] = inputs.update.tensors;
  for (const value of [Infinity, NaN]) {
    const from = new Map(base).set(name, { ...whole, data: whole.data.slice().fill(value, 0, 1) });
    const layout = layoutOf(inputs.strategy, bundle.manifest, from, MASKS);
    assert.throws(() => write(inputs, layout), { name: "MaskError", message: `${name} has non-finite values` });
  }
});

test("sums by class that are missing or not finite are refused", () => {
  const inputs = weighed(cases.sums.written.find((example) => example.kind === "class-means"));
  const layout = layoutOf(inputs.strategy, bundle.manifest, base, MASKS);
  const sums = inputs.update.tensors.get("sums");
  const changed = (tensors) => ({ ...inputs, update: { ...inputs.update, tensors: new Map(tensors) } });
  assert.throws(() => write(changed([]), layout), { name: "MaskError", message: "sums is missing, expected (10, 64)" });
  sums.data[5] = NaN;
  assert.throws(() => write(inputs, layout), { name: "MaskError", message: "sums has non-finite values" });
});

test("kinds whose sums central noise does not hide are refused with it", () => {
  const refused = (kind, message) => {
    const masks = { ...MASKS, noise_milli: 1000 };
    assert.throws(() => layoutOf(kind, bundle.manifest, base, masks), { name: "MaskError", message });
  };
  refused(make("class-means"), "class-means sends sums, counts, to which central noise is not added");
  refused(make("full", { statistics: {} }), "full sends class statistics, to which central noise is not added");
});

test("statistics that a device leaves out are zeros in the layout of the offer", () => {
  const strategy = make("full", { statistics: {} });
  for (const less of [withoutMoments(strategy), withClassStatistics(strategy, null)]) {
    const inputs = weighed({ ...plain, settings: less.settings });
    const layout = layoutOf(strategy, bundle.manifest, base, MASKS);
    const { vector } = write({ ...inputs, strategy: strategy }, layout);
    assert.ok(vector.sums.subarray(4).every((word) => word === 0));
  }
});

test("the bits of a bound are those of the next power of two", () => {
  const bounds = [1, 2, 3, 4, 1e4, 1e6, 1e8, 2 ** 40 + 1, 0.5, 0.3, 1 + 2 ** -52, 2 - 2 ** -52, 2 ** 130];
  assert.deepEqual(bounds.map(bits), [0, 1, 2, 2, 14, 20, 27, 41, -1, -1, 1, 1, 130]);
});
