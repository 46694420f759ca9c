import assert from "node:assert/strict";
import { test } from "node:test";

import { Telling } from "../device/telling.js";

/** What is told of, on a clock that goes by so many seconds a look. */
function heard(step = 1) {
  let now = 0;
  const told = [];
  const telling = new Telling((event) => told.push(event), () => (now += step));
  return { told, telling };
}

const COST = { computeS: 8, seconds: 9 };
const PLAN = {
  chosen: { kind: "peft", label: "peft head", cost: COST },
  candidates: [],
  straggler: { straggler: true, reasons: ["needs 9.0 s of 2.0 s (compute)"] },
};

test("of what a round needs it is told how much is here, though it is looked at again in between", () => {
  const { told, telling } = heard();
  const [large, small] = [{ size: 100 }, { size: 50 }];
  telling.missing("r 1", [large, small]);
  telling.received(60);
  telling.received(40);
  telling.missing("r 1", [small]);
  telling.received(50);
  telling.missing("r 1", []);
  telling.missing("r 2", [small]);
  telling.received(30);
  assert.deepEqual(told.map(({ have, size }) => [have, size]), [[60, 150], [100, 150], [150, 150], [30, 50]]);
});

test("progress has an estimate of what is left: as predicted at first, then as it goes", () => {
  const { told, telling } = heard();
  telling.decided(3, { plan: PLAN, reasons: ["full needs more"] });
  for (const share of [0.01, 0.25, 1]) telling.progressed(share);
  const [plan, ...steps] = told;
  assert.deepEqual([plan.type, plan.label, plan.cost, plan.straggler], ["plan", "peft head", COST, true]);
  assert.match(plan.verdict, /it sends peft head/);
  assert.deepEqual(steps.map((one) => [one.round, one.seconds, one.leftS]), [[3, 1, 7], [3, 2, 6], [3, 3, 0]]);
});

test("not every batch is told of, but the end is", () => {
  const { told, telling } = heard(0.05);
  telling.decided(1, { plan: PLAN, reasons: [] });
  for (const share of [0.2, 0.4, 0.6, 0.8, 0.9, 1]) telling.progressed(share);
  assert.deepEqual(told.slice(1).map((one) => one.share), [0.8, 1]);
});

test("a contribution is told of with how many numbers are in it", () => {
  const { told, telling } = heard();
  const tensors = new Map([["w", { data: new Float32Array(6) }], ["b", { data: new Float32Array(2) }]]);
  const contribution = { kind: "peft", form: "head", numExamples: 5, trainLoss: 0.5, tensors };
  const outcome = { trainTimeS: 2, energyJ: 16, contribution };
  telling.made({ round: 4, label: "peft head", bytesUp: 300, outcome });
  const [{ type, round, values, bytesUp, seconds, energyJ }] = told;
  assert.deepEqual([type, round, values, bytesUp, seconds, energyJ], ["made", 4, 8, 300, 2, 16]);
});
