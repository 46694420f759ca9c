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

const known = { seeds: vectors("masking/seeds"), masks: vectors("masking/masks"), sums: vectors("masking/sums") };
const bundle = await Bundle.open(packed(files(known.sums.bundle)));
const base = bundle.weights();
const SEED = fromHex(known.masks.seeds[0]);
const MASKS = { capacity: 64, noise_milli: 0 };

for (const [at, one] of known.seeds.sealed.entries()) {
  test(`the seeds for ${one.helpers.length} helpers, and the mask, are Python's (${at})`, async () => {
    const { mask, seeds } = await seal(fromHex(one.secret), one.helpers.map(fromHex), one.purpose);
    assert.equal(hex(encodedPurpose(one.purpose)), one.encoded);
    assert.equal(hex(mask.key), one.key);
    assert.deepEqual([mask.tags.map(hex), seeds.map(hex)], [one.tags, one.seeds]);
  });
}

test("a helper's key that is no point is refused", async () => {
  const { purpose } = known.seeds.sealed[0];
  const wrong = seal(SEED, [new Uint8Array(32)], purpose);
  await assert.rejects(wrong, { name: "MaskError", message: /not a valid key for a mask/ });
});

for (const { values, sums, start, end, sha256: sha } of known.masks.masked) {
  test(`keystreams are added to ${values} values and ${sums} sums as in Python`, async () => {
    const vector = new MaskedVector(values, sums);
    vector.bytes.fill(255);
    vector.addMasks(known.masks.seeds.map(fromHex));
    assert.equal(hex(vector.bytes.subarray(0, 64)), start);
    assert.equal(hex(vector.bytes.slice(-64)), end);
    assert.equal(hex(await sha256(vector.bytes)), sha);
  });
}

test("chunks are as long as in Python", () => {
  assert.equal(CHUNK, known.masks.chunk);
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
  const drawn = noise(seed, sizeOf(shape)).map((one) => scale * one);
  if (dtype === "int32") return { dtype, shape, data: Int32Array.from(drawn, Math.abs) };
  const start = base.get(name)?.data;
  return float32(shape, Float32Array.from(drawn, (one, i) => (start ? start[i] + one : one)));
}

/** An update as in the writer of the vectors, with the form that made it. */
function weighed(one) {
  const strategy = make(one.kind, one.settings);
  const specs = strategy.expected(bundle.manifest);
  const made = specs.map((spec, i) => [spec.name, tensor(spec, one.scale, one.seed + i)]);
  const sent = one.statistics ? read(fromHex(one.statistics)) : [];
  const trainLoss = one.loss === null ? NaN : Number(one.loss);
  const tensors = new Map([...made, ...sent]);
  const update = { kind: one.kind, form: strategy.form, tensors, numExamples: one.examples, trainLoss };
  return { update, strategy, mostWeight: one.most_weight };
}

for (const one of known.sums.written) {
  test(`an update is written in the same integers as in Python: ${one.kind} ${JSON.stringify(one.settings)} (${one.seed})`, async () => {
    const given = weighed(one);
    const layout = layoutOf(given.strategy, bundle.manifest, base, one);
    const described = layout.tensors.map(({ shape, bound, exponent }) => [sizeOf(shape), bound, exponent]);
    assert.deepEqual(described, one.values);
    assert.deepEqual(layout.exponents, one.exponents);
    assert.deepEqual(layout.sums.map(({ shape, boundBits, exponent }) => [sizeOf(shape), boundBits, exponent]), one.sums);
    const { vector, note } = write(given, layout, one.most_norm);
    assert.equal(note, one.note);
    assert.deepEqual([...vector.values.subarray(0, 8)], one.first_values);
    const numbers = new DataView(vector.bytes.buffer, 4 * layout.values);
    one.first_sums.forEach((number, at) => assert.equal(`${numbers.getBigUint64(8 * at, true)}`, number, `sum ${at}`));
    assert.equal(hex(await sha256(vector.bytes)), one.sha256);
  });
}

const plain = known.sums.written[0];

test("masks that are subtracted leave the update", () => {
  const given = weighed(plain);
  const layout = layoutOf(given.strategy, bundle.manifest, base, plain);
  const [masked, mask] = [write(given, layout).vector, new MaskedVector(layout.values, layout.numbers)];
  for (const one of [masked, mask]) one.addMasks([SEED]);
  const left = masked.values.map((value, at) => value - mask.values[at]);
  assert.deepEqual(left, write(given, layout).vector.values);
  assert.deepEqual([...left.subarray(-4)], [1, 1, 1, 1]);
});

test("a norm bound holds for all changes together", () => {
  const given = { ...weighed(plain), mostWeight: plain.examples };
  const layout = layoutOf(given.strategy, bundle.manifest, base, plain);
  const { vector, note } = write(given, layout, 0.25);
  assert.match(note, /^its changes were shortened to 0\.1\d+ of their length$/);
  const values = new Int32Array(vector.bytes.buffer, 0, layout.values - 4);
  let [at, squares] = [0, 0];
  for (const { shape, exponent } of layout.tensors) {
    for (const value of values.subarray(at, (at += sizeOf(shape)))) squares += (value * 2 ** -exponent) ** 2;
  }
  assert.ok(Math.abs(Math.sqrt(squares) - 0.25) < 1e-4);
});

test("an update that is not finite, or lacks a tensor, is refused", () => {
  const given = weighed(plain);
  const layout = layoutOf(given.strategy, bundle.manifest, base, plain);
  const [[name, whole], ...others] = given.update.tensors;
  const refused = (tensors, message) => {
    const update = { ...given.update, tensors: new Map(tensors) };
    assert.throws(() => write({ ...given, update }, layout), { name: "MaskError", message });
  };
  const broken = whole.data.slice().fill(NaN, 3, 4);
  refused([[name, { ...whole, data: broken }], ...others], `${name} has non-finite values`);
  refused(others, `${name} is missing, expected (${whole.shape.join(", ")})`);
  refused([[name, float32([2], Float32Array.of(1, 2))], ...others], `${name} is (2,), expected (${whole.shape.join(", ")})`);
});

test("an update of a base that is not finite is refused", () => {
  const given = weighed(plain);
  const [[name, whole]] = given.update.tensors;
  for (const value of [Infinity, NaN]) {
    const from = new Map(base).set(name, { ...whole, data: whole.data.slice().fill(value, 0, 1) });
    const layout = layoutOf(given.strategy, bundle.manifest, from, MASKS);
    assert.throws(() => write(given, layout), { name: "MaskError", message: `${name} has non-finite values` });
  }
});

test("sums by class that are missing or not finite are refused", () => {
  const given = weighed(known.sums.written.find((one) => one.kind === "class-means"));
  const layout = layoutOf(given.strategy, bundle.manifest, base, MASKS);
  const sums = given.update.tensors.get("sums");
  const changed = (tensors) => ({ ...given, update: { ...given.update, tensors: new Map(tensors) } });
  assert.throws(() => write(changed([]), layout), { name: "MaskError", message: "sums is missing, expected (10, 64)" });
  sums.data[5] = NaN;
  assert.throws(() => write(given, layout), { name: "MaskError", message: "sums has non-finite values" });
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
  const asked = make("full", { statistics: {} });
  for (const less of [withoutMoments(asked), withClassStatistics(asked, null)]) {
    const given = weighed({ ...plain, settings: less.settings });
    const layout = layoutOf(asked, bundle.manifest, base, MASKS);
    const { vector } = write({ ...given, strategy: asked }, layout);
    assert.ok(vector.sums.subarray(4).every((word) => word === 0));
  }
});

test("the bits of a bound are those of the next power of two", () => {
  const bounds = [1, 2, 3, 4, 1e4, 1e6, 1e8, 2 ** 40 + 1, 0.5, 0.3, 1 + 2 ** -52, 2 - 2 ** -52, 2 ** 130];
  assert.deepEqual(bounds.map(bits), [0, 1, 2, 2, 14, 20, 27, 41, -1, -1, 1, 1, 130]);
});
