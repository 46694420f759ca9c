import assert from "node:assert/strict";
import { test } from "node:test";

import { EventReporter } from "../device/event_reporter.js";

/** Events that were reported, with a clock that goes forward by so many seconds at each look. */
function reporting(step = 1) {
  let now = 0;
  const events = [];
  const reporter = new EventReporter((event) => events.push(event), () => (now += step));
  return { events, reporter };
}

const COST = { computeS: 8, seconds: 9 };
const PLAN = {
  chosen: { kind: "peft", label: "peft head", cost: COST },
  candidates: [],
  straggler: { straggler: true, reasons: ["needs 9.0 s and has 2.0 s (mostly to compute)"] },
};

test("the progress of a download is reported, also if the missing blobs are looked up again meanwhile", () => {
  const { events, reporter } = reporting();
  const [large, small] = [{ size: 100 }, { size: 50 }];
  reporter.missing("r 1", [large, small]);
  reporter.received(60);
  reporter.received(40);
  reporter.missing("r 1", [small]);
  reporter.received(50);
  reporter.missing("r 1", []);
  reporter.missing("r 2", [small]);
  reporter.received(30);
  assert.deepEqual(events.map(({ have, size }) => [have, size]), [[60, 150], [100, 150], [150, 150], [30, 50]]);
});

test("progress has an estimate of the time left, first by the prediction, then by the speed so far", () => {
  const { events, reporter } = reporting();
  reporter.decided(3, { plan: PLAN, reasons: ["full needs more"] });
  for (const share of [0.01, 0.25, 1]) reporter.progressed(share);
  const [plan, ...steps] = events;
  assert.deepEqual([plan.type, plan.label, plan.cost, plan.straggler], ["plan", "peft head", COST, true]);
  assert.match(plan.verdict, /it sends peft head/);
  assert.deepEqual(steps.map((event) => [event.round, event.seconds, event.leftS]), [[3, 1, 7], [3, 2, 6], [3, 3, 0]]);
});

test("not every batch is reported, but the end is", () => {
  const { events, reporter } = reporting(0.05);
  reporter.decided(1, { plan: PLAN, reasons: [] });
  for (const share of [0.2, 0.4, 0.6, 0.8, 0.9, 1]) reporter.progressed(share);
  assert.deepEqual(events.slice(1).map((event) => event.share), [0.8, 1]);
});

test("a contribution is reported with the count of its numbers", () => {
  const { events, reporter } = reporting();
  const tensors = new Map([["w", { data: new Float32Array(6) }], ["b", { data: new Float32Array(2) }]]);
  const contribution = { kind: "peft", form: "head", numExamples: 5, trainLoss: 0.5, tensors };
  const outcome = { trainTimeS: 2, energyJ: 16, contribution };
  reporter.made({ round: 4, label: "peft head", bytesUp: 300, outcome });
  const [{ type, round, values, bytesUp, seconds, energyJ }] = events;
  assert.deepEqual([type, round, values, bytesUp, seconds, energyJ], ["made", 4, 8, 300, 2, 16]);
});
