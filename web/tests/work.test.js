import assert from "node:assert/strict";
import { test } from "node:test";

import { Speed, Workload } from "../device/cost.js";
import { EngineError, OutOfMemory, OutOfTime } from "../device/errors.js";
import { ClosedWhilePaused, perform } from "../device/work.js";

const WORKLOAD = new Workload({
  graphs: new Map(),
  parameters: new Map(),
  tensors: new Map(),
  weightsBytes: 0,
  downloadBytes: 0,
  featureWidth: 4,
  classCounts: [5, 5],
  sampleBytes: 4,
});

/** A kind that takes so many seconds to compute, and half as many in its second form. */
function kind(name, computeS, forms = [""]) {
  const variants = forms.map((form, place) => ({
    name,
    form,
    variants: () => [variants[place]],
    stopped: () => null,
    unfit: () => "",
    cost: () => {
      const seconds = computeS / (place + 1);
      return { seconds, computeS: seconds, peakMemoryBytes: 10, bytesUp: 1000, bytesDown: 0, energyJ: 5, flops: 1 };
    },
  }));
  return { ...variants[0], variants: () => variants };
}

const PROFILE = {
  name: "dev",
  cores: 1,
  memory: { totalBytes: 100, limitBytes: 100, residentBytes: 0 },
  speed: new Speed(1e9),
  bandwidth: { up: 500, down: 500, source: "" },
  power: { idleW: 1, loadW: 5, source: "", uncertainty: 1 },
  engine: "",
  corrections: new Map(),
  growth: new Map(),
};

/** `deeds` by label: seconds that training takes, or the error that it throws after a second. */
function scriptedWorker(deeds) {
  let now = 100;
  const calls = [];
  const worker = {
    workload: WORKLOAD,
    clock: () => now,
    peakBytes: 77,
    begin: () => {},
    train: async ({ label, strategy, kind: of }, seed, deadline) => {
      calls.push({ label, seed, deadline });
      const deed = deeds[label];
      now += typeof deed === "number" ? deed : 1;
      if (deed instanceof Error) throw deed;
      return { form: strategy, contribution: { kind: of } };
    },
  };
  return { worker, calls };
}

function assignment(kinds, more = {}) {
  const decided = [];
  return { kinds, seed: 9n, deadline: 110, lost: () => 0, decided: (plan) => decided.push(plan), all: decided, ...more };
}

test("the richest form that fits is trained, and its time and energy are accounted for", async () => {
  const { worker, calls } = scriptedWorker({ "full": 4 });
  const order = assignment([kind("full", 4), kind("few-shot", 1)]);
  const outcome = await perform(worker, PROFILE, order);
  assert.equal(outcome.contribution.kind, "full");
  assert.deepEqual([outcome.trainTimeS, outcome.energyJ, outcome.uncertainty, outcome.peakMemoryBytes], [4, 20, 1, 77]);
  assert.deepEqual(outcome.timings, [{ kind: "full", predictedS: 4, seconds: 4 }]);
  assert.deepEqual(calls, [{ label: "full", seed: 9n, deadline: 108 }]); // 1000 bytes take 2 s to send
  assert.equal(order.all[0].roomBytes, 0.9 * 10 * 500 - 1000);
  assert.deepEqual(outcome.reasons, []);
});

test("a form that runs out of time is given up, and the next that fits in the time left is trained", async () => {
  const late = Object.assign(new OutOfTime("10% done, would end 9.0 s after the deadline"), { wholeS: 17 });
  const { worker } = scriptedWorker({ "full": late, "entropy-subset 50%": new OutOfMemory("no more"), "few-shot": 1 });
  const kinds = [kind("full", 4), kind("entropy-subset", 2, ["50%"]), kind("few-shot", 1)];
  const order = assignment(kinds);
  const outcome = await perform(worker, PROFILE, order);
  assert.equal(outcome.contribution.kind, "few-shot");
  const gaveUp = ["full given up: 10% done, would end 9.0 s after the deadline", "entropy-subset 50% given up: no more"];
  assert.deepEqual(outcome.gaveUp, gaveUp);
  assert.deepEqual(order.all.map((decision) => decision.plan.chosen.label), ["full", "entropy-subset 50%", "few-shot"]);
  assert.deepEqual(order.all[2].reasons, gaveUp);
  assert.deepEqual(outcome.outOfMemoryKinds, ["entropy-subset"]);
  assert.deepEqual(outcome.timings.map((timing) => [timing.kind, timing.seconds]), [["full", 17], ["few-shot", 1]]);
});

test("a poorer form of the same kind comes before the next kind", async () => {
  const { worker } = scriptedWorker({ "peft bias": new EngineError("refused"), "peft head": 2 });
  const outcome = await perform(worker, PROFILE, assignment([kind("peft", 6, ["bias", "head"]), kind("few-shot", 1)]));
  assert.equal(outcome.plan.chosen.label, "peft head");
});

test("if nothing fits any more the device sits out, with the reasons", async () => {
  const { worker } = scriptedWorker({ "full": new OutOfTime("too slow") });
  const outcome = await perform(worker, PROFILE, assignment([kind("full", 4), kind("few-shot", 50)]));
  assert.equal(outcome.contribution, null);
  const reasons = ["few-shot needs 50.0 s and has 8.1 s (mostly to compute)", "full given up: too slow"];
  assert.deepEqual(outcome.reasons, reasons);
});

test("a pause uses up the round's time, and does not change the predicted time of a kind", async () => {
  let lostS = 0;
  const { worker } = scriptedWorker({ "full": new ClosedWhilePaused("40% done when the round closed") });
  const order = assignment([kind("full", 4), kind("few-shot", 3)], { lost: () => lostS });
  order.decided = () => {
    lostS = 8;
  };
  const outcome = await perform(worker, PROFILE, order);
  assert.equal(outcome.contribution, null); // of ten seconds, work took one and pauses eight
  assert.deepEqual(outcome.timings, []);
  const reasons = ["few-shot needs 3.0 s and has 0.9 s (mostly to compute)", "full given up: 40% done when the round closed"];
  assert.deepEqual(outcome.reasons, reasons);
});

test("an unexpected error is thrown, and nothing poorer is trained", async () => {
  const { worker } = scriptedWorker({ "full": new TypeError("x is undefined") });
  await assert.rejects(perform(worker, PROFILE, assignment([kind("full", 4), kind("few-shot", 1)])), TypeError);
});
