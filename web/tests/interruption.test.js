import assert from "node:assert/strict";
import { test } from "node:test";

import { Stopped } from "../device/errors.js";
import { Going } from "../device/interruption.js";
import { Hours } from "../device/work_gate.js";
import { HeldUp } from "../device/work.js";

const OFFER = { task: "t", run: "r", round: 3 };

/** Work on a round that closes at 50 s; `heard` is done when what has come is taken. */
function atWork(heard = async () => {}) {
  const time = { now: 10 };
  const hours = new Hours(() => time.now);
  const open = { offer: OFFER, closes: 50 };
  const done = [];
  const duty = {
    open,
    working: open,
    over: "",
    telling: { progressed: (share) => done.push(["told", share]) },
    sending: { due: async (now) => done.push(["sent", now]) },
    standBy: async () => done.push(["stood by", time.now]),
    resume: () => done.push(["resumed", time.now]),
  };
  const going = new Going(hours, duty, async (seconds) => {
    time.now += seconds;
    await heard({ time, hours, duty, going });
  });
  return { going, hours, duty, time, done };
}

test("between two steps what has come is heard, and what waits is sent once a second", async () => {
  const { going, time, done } = atWork(async ({ time: at }) => void (at.now += 0.3));
  for (const share of [0.1, 0.2, 0.3, 0.4, 0.5]) await going.progress(share);
  assert.deepEqual(done.filter(([what]) => what === "sent").map(([, now]) => now.toFixed(1)), ["10.3", "11.5"]);
  assert.equal(time.now.toFixed(1), "11.5");
});

test("work stands still while it may not be done, and goes on when it may", async () => {
  const { going, hours, done } = atWork(async ({ time: at, hours: of }) => {
    if (at.now >= 13) of.resume("the page is hidden");
  });
  hours.pause("the page is hidden");
  await going.progress(0.5);
  assert.equal(hours.lost(), 3);
  assert.deepEqual(done.filter(([what]) => what !== "told"), [
    ["sent", 10],
    ["stood by", 10],
    ["stood by", 11],
    ["stood by", 12],
    ["resumed", 13],
  ]);
});

test("work that stands still is given up when another round is open, and ends when its own closes", async () => {
  const other = atWork(async ({ duty }) => {
    duty.open = { offer: { ...OFFER, round: 4 }, closes: 90 };
  });
  other.hours.pause("the page is hidden");
  await assert.rejects(other.going.progress(0.25), (error) => {
    assert.equal(error.message, "round 3 given up, 25% done: paused: the page is hidden");
    return error instanceof Stopped;
  });
  const late = atWork();
  late.hours.pause("the page is hidden");
  await assert.rejects(late.going.progress(0.5), HeldUp);
  assert.equal(late.time.now, 50);
});

test("work ends when the device is to stop, and when its task is over", async () => {
  const { going } = atWork();
  going.isStopped = true;
  await assert.rejects(going.progress(0.4), /stopped with 40% of an update done: it is not sent/);
  const over = atWork(async ({ duty }) => void (duty.over = "r"));
  await assert.rejects(over.going.progress(0.4), Stopped);
});

test("what others want of the model is done between two steps, in turn, and its errors are theirs", async () => {
  const { going } = atWork();
  const first = going.between(async () => "one");
  const second = going.between(async () => {
    throw new RangeError("two");
  });
  await going.progress(0.1);
  assert.equal(await first, "one");
  await assert.rejects(second, RangeError);
});
