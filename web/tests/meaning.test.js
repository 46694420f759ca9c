import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, joules, seconds } from "../page/format.js";
import { make } from "../device/kinds/registry.js";
import { became, called, does, idle, plainly, sends, verdict } from "../page/meaning.js";

const KINDS = ["full", "peft", "entropy-subset", "few-shot", "zeroth-order", "class-means"];

test("two scalars are described as two numbers", () => {
  const text = sends({ kind: "zeroth-order", form: "", bytesUp: 47, values: 2, leastDevices: 0 });
  assert.equal(text, "47 bytes, 2 numbers: how much better or worse each random change made it");
});

test("a masked update is described as one that only sums reveal", () => {
  const text = sends({ kind: "full", form: "", bytesUp: 312_000, values: 78_000, leastDevices: 20 });
  assert.match(text, /after training; masked, so that only sums of 20 devices or more can be read$/);
});

test("biases are described as biases", () => {
  const text = sends({ kind: "peft", form: "bias", bytesUp: 6500, values: 1578 });
  assert.equal(text, "6.5 kB, 1,578 numbers: the biases of the model");
});

test("every kind has its own description, and an unknown kind its name", () => {
  assert.equal(new Set(KINDS.map(does)).size, KINDS.length);
  assert.match(does("entropy-subset 25%"), /upper part of the model on a quarter of your samples/);
  assert.match(does("entropy-subset 30% epochs=2"), /about one in 3 of your samples, .*, twice over\.$/);
  assert.match(does("tomorrow"), /called tomorrow/);
  assert.equal(sends({ kind: "tomorrow", form: "", bytesUp: 2e6, values: 1 }), "2 MB, 1 number");
});

test("each form of each kind has words without the names and signs of the wire", () => {
  const settings = {
    full: { epochs: 20, graded: true },
    peft: { tunables: ["head", "bias", "adapter", "prompt", "prefix", "lora", "sparse"], reduced_epochs: 1 },
    "entropy-subset": { shares: [1, 0.75, 0.5, 0.25, 0.1, 0.3, 0.05], graded: true },
  };
  const forms = KINDS.flatMap((kind) => make(kind, settings[kind] ?? {}).variants());
  assert.ok(forms.length > 30);
  for (const { name, form } of forms) {
    const words = [called(`${name} ${form}`.trimEnd()), sends({ kind: name, form, bytesUp: 1, values: 1, leastDevices: 0 })];
    for (const text of words) assert.doesNotMatch(text, /[%=_-]|epochs|entropy|zeroth|class|bias=|few-shot|peft/);
  }
});

test("a line of the log about a round that is sat out has no name of the wire, and others are as they are", () => {
  const text = plainly("round 1: sitting out: full given up: 10% done; entropy-subset 50% epochs=2 needs 9 s");
  const words = "“trains the whole model on your samples” given up: 10% done; “trains the upper part of the model on half of your samples, those it is least sure of, twice over” needs 9 s";
  assert.equal(text, `round 1: nothing is sent: ${words}`);
  assert.equal(plainly("the disk of this device is full"), "the disk of this device is full");
});

test("the reason why nothing is done has no name of the wire", () => {
  const rows = [{ why: "needs 91.0 s, 54.0 s are left" }, { why: "needs 91.0 s, 54.0 s are left" }];
  assert.equal(idle({ rows, reasons: ["full needs 91.0 s, 54.0 s are left"] }), "Nothing fits this time: needs 91.0 s, 54.0 s are left.");
  assert.match(idle({ rows: [], reasons: ["rests: nothing wanted (few-shot brings training)"] }), /^Other devices bring/);
});

test("every kind has a name, and the reason why it was chosen is in plain words", () => {
  assert.equal(new Set(KINDS.map(called)).size, KINDS.length);
  assert.equal(called("tomorrow 2"), "tomorrow 2");
  const rows = [{ kind: "full", why: "needs 91.0 s, 54.0 s are left" }];
  const too = verdict({ label: "few-shot", straggler: true, rows });
  assert.match(too, /^The whole model is too much for this device this time \(needs 91.0 s, 54.0 s are left\)/);
  assert.match(verdict({ label: "few-shot", straggler: true, rows: [] }), /this time, so it does what fits\.$/);
  assert.match(verdict({ label: "full", straggler: false, rows }), /could train the whole model/);
  assert.match(verdict({ label: "", straggler: true, rows }), /sits the round out/);
});

test("a refusal is shown with its reason", () => {
  assert.equal(became({ status: "refused", reason: "head.weight is (10, 64)" }), "refused: head.weight is (10, 64)");
  assert.match(became({ status: "accepted", reason: "" }), /counted/);
});

test("numbers are short, with their units", () => {
  assert.deepEqual([1, 999, 1500, 312328, 14e6, 2.5e9].map(bytes), ["1 byte", "999 bytes", "1.5 kB", "312 kB", "14 MB", "2.5 GB"]);
  assert.deepEqual([0.01, 3.21, 42.4, 150, 9000].map(seconds), ["less than 0.1 s", "3.2 s", "42 s", "3 min", "2.5 h"]);
  assert.equal(joules(432), "432 J (1.0 % of a phone's battery)");
});
