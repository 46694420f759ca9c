import assert from "node:assert/strict";
import { test } from "node:test";

import { Speed } from "../device/cost.js";
import { OutOfMemory } from "../device/errors.js";
import { completed, measureSpeed, quicker } from "../device/timing.js";

/** Trials that take so many seconds: in the first run, and in each later one. */
function trials(times) {
  let now = 0;
  const closed = [];
  const entries = Object.entries(times).map(([name, { first, then, samples = 32, flops = 1e6, fails }]) => {
    let runs = 0;
    const run = async () => {
      if (fails) throw fails;
      now += runs ? then[(runs - 1) % then.length] : first;
      runs += 1;
    };
    return [name, { run, samples, flops, close: () => closed.push(name) }];
  });
  return { trials: new Map(entries), clock: () => now, closed };
}

test("the fastest of the later runs counts, and the first run's further seconds are those of opening", async () => {
  const run = trials({ forward: { first: 0.5, then: [0.05, 0.09, 0.02, 0.03, 0.04] } });
  const speed = await measureSpeed(run.trials, run.clock, 2.5);
  assert.equal(speed.seconds.get("forward").toFixed(9), (0.02 / 32).toFixed(9));
  assert.equal(speed.opening.get("forward").toFixed(9), (0.48).toFixed(9));
  assert.equal(Math.round(speed.flopsPerS), Math.round(1e6 / (0.02 / 32)));
  assert.deepEqual(run.closed, ["forward"]);
});

test("a graph without time left is not measured, and a slow one is run at least twice", async () => {
  const slow = { first: 1, then: [1], flops: 4e6 };
  const run = trials({ forward: { first: 0.3, then: [0.25] }, "train.all": slow, "train.mid": slow });
  const speed = await measureSpeed(run.trials, run.clock, 2.5);
  assert.deepEqual([...speed.seconds.keys()], ["forward"]); // two runs of 4 * 0.25 s do not fit into the time left
  const more = trials({ forward: { first: 0.3, then: [0.25] }, "train.all": slow });
  const wide = await measureSpeed(more.trials, more.clock, 5);
  assert.equal(wide.seconds.get("train.all"), 1 / 32);
});

test("a graph that the memory does not allow is not measured, and the error of the first graph is thrown", async () => {
  const fails = new OutOfMemory("no more");
  const times = { first: 0.01, then: [0.01] };
  const run = trials({ forward: times, "train.all": { ...times, fails }, "loss.all": times });
  const speed = await measureSpeed(run.trials, run.clock, 2.5);
  assert.deepEqual([...speed.seconds.keys()], ["forward", "loss.all"]);
  assert.deepEqual(run.closed, ["forward", "train.all", "loss.all"]);
  const first = trials({ forward: { ...times, fails } });
  await assert.rejects(measureSpeed(first.trials, first.clock, 2.5), OutOfMemory);
});

test("a graph that was not measured is as fast, operation for operation, as those of its sort", async () => {
  const graphs = {
    forward: { flops: 10, bytes: 100 },
    "train.all": { flops: 30, bytes: 300 },
    "train.head": { flops: 15, bytes: 100 },
    "loss.all": { flops: 20, bytes: 200 },
  };
  const run = trials({
    forward: { first: 0.2, then: [0.1], samples: 1, flops: 10 },
    "train.all": { first: 1.2, then: [0.9], samples: 1, flops: 30 },
  });
  const speed = completed(await measureSpeed(run.trials, run.clock, 50), graphs);
  assert.equal(speed.seconds.get("train.head").toFixed(9), (0.45).toFixed(9)); // half of train.all's operations
  assert.equal(speed.seconds.get("loss.all").toFixed(9), (0.2).toFixed(9)); // twice those of forward
  assert.equal(speed.opening.get("train.head").toFixed(9), ((0.1 + 0.3) / 400 * 100).toFixed(9));
  assert.match(speed.source, /2 of 4 graphs by their operations$/);
});

test("the faster of two measurements counts, graph by graph", () => {
  const speed = (rate, forward, train, opening) => {
    const seconds = new Map([["forward", forward], ["train.all", train]]);
    return new Speed(rate, { seconds, opening: new Map([["forward", opening]]), stepS: train, source: "here" });
  };
  const best = quicker(speed(10, 0.3, 0.5, 1), speed(20, 0.1, 0.9, 2));
  assert.deepEqual(best, speed(20, 0.1, 0.5, 1));
});
