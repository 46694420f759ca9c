import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes, joules, seconds } from "../page/format.js";
import { became, called, does, sends, verdict } from "../page/meaning.js";

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
  assert.equal(does("entropy-subset 25%"), does("entropy-subset"));
  assert.match(does("tomorrow"), /of kind tomorrow/);
  assert.equal(sends({ kind: "tomorrow", form: "", bytesUp: 2e6, values: 1 }), "2 MB, 1 number");
});

test("every kind has a short name, and the reason why it was chosen is in plain words", () => {
  assert.equal(new Set(KINDS.map(called)).size, KINDS.length);
  assert.ok(KINDS.every((kind) => called(`${kind} 25%`) === called(kind) && called(kind) !== kind));
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
