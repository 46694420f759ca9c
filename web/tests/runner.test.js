/** Between two steps of training: messages, sending, pauses, and why the training ends. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Blobs } from "../device/blobs.js";
import { MemoryDisk } from "../device/disk.js";
import { WorkStopped } from "../device/errors.js";
import { Outbox } from "../device/outbox.js";
import { DeviceMessages } from "../device/presence.js";
import { Runner } from "../device/runner.js";
import { ClosedWhilePaused } from "../device/work.js";
import { WorkGate } from "../device/work_gate.js";
import { contribution } from "./contributions.js";

const SHA = new Uint8Array(32);
const BASE = { checkpoint: [{ sha: SHA, size: 1 }], sha: SHA, at: 0, log: [] };
const TIMES = { deadline_s: 50, remaining_s: 50 };
const offer = (round, more = {}) => {
  const named = { task: "t", run: "r", round, done: false, ...TIMES, family: [], base: BASE };
  return { offer: { ...named, bundle: { sha: SHA, size: 1 }, ...more }, closes: 50 };
};

/** A device that trains for a round that closes at 50 s; `heard` is called when messages are handled. */
async function training(act = async () => {}) {
  const time = { now: 10 };
  const sent = [];
  const lines = [];
  const disk = new MemoryDisk();
  const gate = new WorkGate(() => time.now);
  const messages = new DeviceMessages("dev", 7n);
  const publish = (topic) => sent.push([topic.split("/").slice(5).join("/"), time.now]);
  messages.link = { publish, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 };
  const environment = { clock: gate.clock, disk, tell: () => {}, log: (_level, line) => lines.push(line), name: "dev" };
  const parts = { gate, messages, blobs: await Blobs.open(disk), outbox: await Outbox.open(disk), task: "t" };
  const runner = new Runner(environment, parts);
  await runner.take(offer(3), { to_all: false });
  runner.state = { ...runner.state, training: runner.state.open, missing: [] };
  runner.hear = async (seconds) => {
    time.now += seconds;
    await act({ time, gate, runner });
  };
  return { runner, gate, time, sent, lines };
}

test("messages are handled between two steps, and contributions are sent once a second", async () => {
  const { runner, time, sent } = await training(async ({ time: at }) => void (at.now += 0.3));
  await runner.outbox.add(contribution(1, 2));
  const entry = { seq: 1, task: "t", run: "r", round: 2, samples: 1, fetched: false, compact: false };
  const unsent = { first_s: null, carried_s: null, wait_s: 10, order: 0 };
  runner.state = { ...runner.state, outbox: [{ ...entry, ...unsent }] };
  for (const share of [0.1, 0.2]) await runner.progressed(share);
  assert.deepEqual(sent.map(([leaf, now]) => [leaf, now.toFixed(1)]), [["contribution", "10.3"]]);
  runner.state = { ...runner.state, outbox: [{ ...entry, ...unsent }] };
  for (const share of [0.3, 0.4, 0.5]) await runner.progressed(share);
  assert.equal(sent[1][1].toFixed(1), "11.5");
  assert.equal(time.now.toFixed(1), "11.5");
});

test("training is held while the gate is closed, and goes on when it opens", async () => {
  const { runner, gate, sent } = await training(async ({ time: at, gate: of }) => {
    if (at.now >= 13) of.resume("the page is hidden");
  });
  gate.pause("the page is hidden");
  await runner.progressed(0.5);
  assert.equal(gate.lost(), 3);
  assert.deepEqual(sent, [["state", 10], ["plan", 10], ["state", 13], ["hello", 13]]);
});

test("paused training is given up when another round is open, and ends when its own round closes", async () => {
  const other = await training(async ({ runner }) => {
    if (runner.state.open.round === 3) await runner.take(offer(4), { to_all: false });
  });
  other.gate.pause("the page is hidden");
  await assert.rejects(other.runner.progressed(0.25), (error) => {
    assert.equal(error.message, "round 3 given up, 25% done: paused: the page is hidden");
    return error instanceof WorkStopped;
  });
  const late = await training();
  late.gate.pause("the page is hidden");
  await assert.rejects(late.runner.progressed(0.5), ClosedWhilePaused);
  assert.ok(late.time.now >= 50);
});

test("training that an error has ended during a pause is held again at the next form", async () => {
  let failures = 1;
  const { runner, gate } = await training(async ({ time, gate: of }) => {
    if (time.now === 11 && failures-- > 0) throw new RangeError("no more memory");
    if (time.now >= 13) of.resume("the page is hidden");
  });
  gate.pause("the page is hidden");
  await assert.rejects(runner.progressed(0.5), RangeError);
  await runner.progressed(0);
  assert.equal(gate.lost(), 3);
});

test("training ends when the device must stop, and when its task is done", async () => {
  const { runner } = await training();
  runner.isStopped = true;
  await assert.rejects(runner.progressed(0.4), /stopped with 40% of an update done: it is not sent/);
  const over = await training(async ({ runner: of }) => {
    if (!of.state.done) await of.take(offer(3, { done: true }), { to_all: true });
  });
  await assert.rejects(over.runner.progressed(0.4), /the task is over, with 40% of an update/);
});

test("calls of `between` are done between two steps, in turn, and their errors go to their callers", async () => {
  const { runner } = await training();
  const first = runner.between(async () => "one");
  const second = runner.between(async () => {
    throw new RangeError("two");
  });
  await runner.progressed(0.1);
  assert.equal(await first, "one");
  await assert.rejects(second, RangeError);
});
