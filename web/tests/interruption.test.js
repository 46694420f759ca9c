import assert from "node:assert/strict";
import { test } from "node:test";

import { WorkStopped } from "../device/errors.js";
import { Interruption } from "../device/interruption.js";
import { ClosedWhilePaused } from "../device/work.js";
import { WorkGate } from "../device/work_gate.js";

const OFFER = { task: "t", run: "r", round: 3 };

/** Work on a round that closes at 50 s; `heard` is called when messages are handled. */
function atWork(heard = async () => {}) {
  const time = { now: 10 };
  const gate = new WorkGate(() => time.now);
  const open = { offer: OFFER, closes: 50 };
  const done = [];
  const rounds = {
    open,
    working: open,
    finishedRun: "",
    reporter: { progressed: (share) => done.push(["told", share]) },
    sending: { due: async (now) => done.push(["sent", now]) },
    standBy: async () => done.push(["stood by", time.now]),
    resume: () => done.push(["resumed", time.now]),
  };
  const interruption = new Interruption(gate, rounds, async (seconds) => {
    time.now += seconds;
    await heard({ time, gate, rounds, interruption });
  });
  return { interruption, gate, rounds, time, done };
}

test("messages are handled between two steps, and waiting contributions are sent once a second", async () => {
  const { interruption, time, done } = atWork(async ({ time: at }) => void (at.now += 0.3));
  for (const share of [0.1, 0.2, 0.3, 0.4, 0.5]) await interruption.progress(share);
  assert.deepEqual(done.filter(([what]) => what === "sent").map(([, now]) => now.toFixed(1)), ["10.3", "11.5"]);
  assert.equal(time.now.toFixed(1), "11.5");
});

test("work is paused while the gate is closed, and goes on when it opens", async () => {
  const { interruption, gate, done } = atWork(async ({ time: at, gate: of }) => {
    if (at.now >= 13) of.resume("the page is hidden");
  });
  gate.pause("the page is hidden");
  await interruption.progress(0.5);
  assert.equal(gate.lost(), 3);
  assert.deepEqual(done.filter(([what]) => what !== "told"), [
    ["sent", 10],
    ["stood by", 10],
    ["stood by", 11],
    ["stood by", 12],
    ["resumed", 13],
  ]);
});

test("paused work is given up when another round is open, and ends when its own round closes", async () => {
  const other = atWork(async ({ rounds }) => {
    rounds.open = { offer: { ...OFFER, round: 4 }, closes: 90 };
  });
  other.gate.pause("the page is hidden");
  await assert.rejects(other.interruption.progress(0.25), (error) => {
    assert.equal(error.message, "round 3 given up, 25% done: paused: the page is hidden");
    return error instanceof WorkStopped;
  });
  const late = atWork();
  late.gate.pause("the page is hidden");
  await assert.rejects(late.interruption.progress(0.5), ClosedWhilePaused);
  assert.equal(late.time.now, 50);
});

test("work ends when the device must stop, and when its task is over", async () => {
  const { interruption } = atWork();
  interruption.isStopped = true;
  await assert.rejects(interruption.progress(0.4), /stopped with 40% of an update done: it is not sent/);
  const over = atWork(async ({ rounds }) => void (rounds.finishedRun = "r"));
  await assert.rejects(over.interruption.progress(0.4), WorkStopped);
});

test("calls of `between` are done between two steps, in turn, and their errors go to their callers", async () => {
  const { interruption } = atWork();
  const first = interruption.between(async () => "one");
  const second = interruption.between(async () => {
    throw new RangeError("two");
  });
  await interruption.progress(0.1);
  assert.equal(await first, "one");
  await assert.rejects(second, RangeError);
});
