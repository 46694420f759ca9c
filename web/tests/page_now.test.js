import assert from "node:assert/strict";
import { test } from "node:test";

import { Now } from "../page/now.js";

/** Stand for the nodes of a page, and hold their values. @type {Map<string, any>} */
const nodes = new Map();
globalThis.document = {
  getElementById: (id) => nodes.get(id) ?? nodes.set(id, { dataset: {}, replaceChildren: () => {} }).get(id),
  createElement: () => ({ setAttribute: () => {}, append: () => {} }),
};
const state = () => nodes.get("state").textContent;

test("a download after the last round does not hide that the task is over", () => {
  const now = new Now();
  now.hear({ type: "fetching", have: 0, size: 1000 });
  assert.match(state(), /^Fetching the model/);
  now.hear({ type: "offer", task: "digits", round: 3, done: true });
  assert.equal(state(), "The task is over after 3 rounds. Thank you!");
  now.hear({ type: "fetching", have: 1000, size: 1000 });
  now.hear({ type: "task", examples: 0 });
  assert.equal(state(), "The task is over after 3 rounds. Thank you!");
  now.hear({ type: "offer", task: "more", round: 0, done: false });
  now.hear({ type: "fetching", have: 0, size: 1000 });
  assert.match(state(), /^Fetching the model/);
});

test("a round of another run is worked on though the same number was done in the run before", () => {
  const now = new Now();
  const plan = { type: "plan", round: 1, label: "full", rows: [], reasons: [], cost: null };
  const message = { type: "made", round: 1, kind: "full", form: "", bytesUp: 100, values: 10, seconds: 1 };
  for (const run of ["one", "two"]) {
    now.hear({ type: "offer", task: "digits", run, round: 1, done: false });
    assert.equal(now.training, false);
    now.hear(plan);
    assert.equal(now.training, true);
    now.hear(message);
    now.hear({ type: "ended", round: 1 });
    assert.equal(now.training, false);
  }
});

test("a device without samples is asked for some, not shown why each kind of update needs them", () => {
  const now = new Now();
  const reasons = ["full has no local data", "few-shot a classifier needs 2 classes"];
  now.hear({ type: "offer", task: "digits", run: "one", round: 2, done: false });
  now.hear({ type: "plan", round: 2, label: "", rows: [], reasons, cost: null });
  assert.equal(state(), "Round 2: no samples here yet. Add a few, then it can help.");
  assert.equal(nodes.get("does").textContent, "");
});
