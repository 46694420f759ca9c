import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { concat, text, utf8 } from "../device/bytes.js";
import { checkManifest } from "../device/consistency.js";
import { BundleError } from "../device/errors.js";
import { Manifest, readManifest } from "../device/manifest.js";
import { files, packed } from "./shipped.js";
import { vectors } from "./vectors.js";

const expected = vectors("kinds").bundle;
const FILES = files(expected.name);
const MANIFEST = "manifest.json";
const stated = () => JSON.parse(text(FILES.get(MANIFEST)));
const withManifest = (fields) =>
  packed(new Map(FILES).set(MANIFEST, utf8(JSON.stringify({ ...fields, seal: "" }))));

async function refused(zip, why) {
  await assert.rejects(Bundle.open(zip), (error) => error instanceof BundleError && why.test(error.message));
}

test("the shipped bundle opens, and has the same hash as in Python", async () => {
  const bundle = await Bundle.open(packed(FILES));
  assert.equal(bundle.sha256, expected.sha256);
  assert.equal(bundle.manifest.numParameters("head"), 650);
  assert.deepEqual([...bundle.weights().keys()].sort(), bundle.manifest.names().sort());
  assert.throws(() => bundle.graph("train.bias"), /has no graph 'train.bias'; it has forward, /);
});

test("a file that was changed or is missing is refused", async () => {
  const graph = FILES.get("train.all.onnx").slice();
  graph[100] ^= 1;
  await refused(
    packed(new Map(FILES).set("train.all.onnx", graph)),
    /train.all.onnx .* is damaged: sha256 is/,
  );
  const less = new Map(FILES);
  less.delete("weights.safetensors");
  await refused(packed(less), /weights.safetensors .* is missing/);
  less.delete(MANIFEST);
  await refused(packed(less), /it has no manifest.json/);
});

test("bytes that are no zip of plain files are refused", async () => {
  const zip = packed(FILES);
  await refused(zip.subarray(0, zip.length - 30), /not a sound zip/);
  await refused(utf8("no zip"), /not a sound zip/);
  await refused(packed(new Map([["../up", utf8("x")]])), /expected plain names once/);
  await refused(
    concat([zip.subarray(0, zip.length - 6), Uint8Array.of(255, 255, 255, 127, 0, 0)]),
    /not a sound zip/,
  );
});

test("a manifest whose seal does not fit is refused", async () => {
  const changed = utf8(text(FILES.get(MANIFEST)).replace("0.305", "0.306"));
  await assert.rejects(readManifest(changed), /does not fit its seal/);
});

test("a manifest with an unknown field, a wrong type or another format is refused", async () => {
  await refused(withManifest({ ...stated(), extra: 1 }), /unknown field "extra"/);
  await refused(withManifest({ ...stated(), labels: "ab" }), /manifest.labels is "ab", expected a list/);
  await refused(withManifest({ ...stated(), format: 3 }), /format 3, this version reads 2: update/);
  await refused(
    withManifest({ ...stated(), input: { ...stated().input, std: [0] } }),
    /std of the input is 0/,
  );
});

test("weights of another shape than the manifest says are refused", async () => {
  const parameters = stated().parameters.map((entry) =>
    entry.name === "norm.bias" ? { ...entry, shape: [63] } : entry,
  );
  await refused(withManifest({ ...stated(), parameters }), /norm.bias is \(64,\), expected \(63,\)/);
});

test("parts of a manifest that do not fit each other are refused", () => {
  const wrong = (change, why) => {
    const fields = structuredClone(stated());
    change(fields);
    assert.throws(
      () => checkManifest(new Manifest(fields)),
      (error) => error instanceof BundleError && why.test(error.message),
    );
  };
  checkManifest(new Manifest(stated()));
  wrong((entry) => delete entry.graphs.forward, /lists no graph 'forward'/);
  wrong(
    (entry) => (entry.graphs["train.low"] = { ...entry.graphs["train.mid"], file: "train.low.onnx" }),
    /graph 'train.low' is none of/,
  );
  wrong(
    (entry) => entry.graphs["train.mid"].trainable.pop(),
    /train.mid and its tunable set differ in head.bias/,
  );
  wrong((entry) => (entry.weights.file = "../weights"), /expected a plain file name/);
  wrong((entry) => entry.graphs.forward.frozen.push("other"), /takes other, which is no parameter/);
  wrong((entry) => (entry.head.features = 63), /head parameter head.weight is \(10, 64\), expected \(10, 63\)/);
  wrong((entry) => (entry.labels[1] = "0"), /label '0' occurs twice/);
});

test("names that change the direction of writing, or look like others, are refused, also in templates", () => {
  const fields = stated();
  const [first, ...rest] = fields.labels;
  for (const name of ["\u202egnp.exe", "a\u00a0b", "a\u2028b", "\u0007"]) {
    const labelled = new Manifest({ ...fields, labels: [name, ...rest] });
    assert.throws(() => checkManifest(labelled), /expected printable characters/);
    const text = { tokenizer: fields.weights, template: `{text} ${name}`, words: [] };
    const manifest = new Manifest({ ...fields, input: { ...fields.input, text } });
    assert.throws(() => checkManifest(manifest), /expected printable characters/);
  }
  checkManifest(new Manifest({ ...fields, labels: [`${first} é \u{1f600}`, ...rest] }));
});

test("the time to check a manifest with a hundred thousand labels is not quadratic", () => {
  const fields = stated();
  const labels = Array.from({ length: 100_000 }, (_, i) => `label ${i}`);
  const long = new Manifest({ ...fields, labels });
  assert.throws(() => checkManifest(long), /head parameter .* expected \(100000, /);
});

test("a graph that takes a parameter without a name is refused", () => {
  const fields = stated();
  const forward = { statistics: [], extras: [], derived: [], ...fields.graphs.forward, frozen: [""] };
  const graphs = { ...fields.graphs, forward };
  assert.throws(() => checkManifest(new Manifest({ ...fields, graphs })), /graph forward takes , which is no parameter/);
});

test("a bundle with another loss than cross-entropy is refused by name", async () => {
  const loss = { loss: "mse", compared: "values", columns: ["price"] };
  await refused(withManifest({ ...stated(), loss }), /is trained with loss mse, browsers train with cross-entropy only/);
});
