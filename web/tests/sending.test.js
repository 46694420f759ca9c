import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDisk } from "../device/disk.js";
import { float32 } from "../device/flat.js";
import { Contribution, decode } from "../device/messages.js";
import { Outbox } from "../device/outbox.js";
import { DeviceMessages } from "../device/presence.js";
import { write } from "../device/safetensors.js";
import { ContributionSender } from "../device/sending.js";

const METRICS = { train_loss: 0.5, train_time_ms: 10, energy_mj: 20, peak_memory_kib: 30 };
const scalars = (...values) => write(new Map([["g", float32([values.length], Float32Array.from(values))]]));

const update = (round, more = {}) => ({
  task: "t",
  run: "r",
  round,
  boot: 0n,
  seq: 0,
  kind: "few-shot",
  num_examples: 5,
  metrics: { ...METRICS, epsilon_milli: 0, energy_source: "", energy_off_percent: 100 },
  body: Uint8Array.of(1, 2, 3),
  blob: null,
  form: "",
  ...more,
});

const receipt = (message, more = {}) => {
  const { boot, seq, round } = message;
  return { boot, seq, round, status: "accepted", reason: "", retry_after_s: 0, ...more };
};

/** A process of a device on this disk, and the contributions that it sends, whole or compact, in order. */
async function life(disk = new MemoryDisk(), boot = 7n) {
  const sent = [];
  const lines = [];
  const read = (topic, payload) => (topic.endsWith("/c") ? { short: payload } : decode(Contribution, payload));
  const publish = (topic, payload) => sent.push(read(topic, payload));
  const messages = new DeviceMessages("dev", boot);
  messages.link = { publish, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 };
  const log = (_level, line) => lines.push(line);
  const sending = new ContributionSender(await Outbox.open(disk, log), messages, log);
  return { sending, sent, lines };
}

test("a receipt ends the waiting, and is logged", async () => {
  const { sending, lines } = await life();
  const message = await sending.keep(update(1));
  assert.equal(await sending.send(message.seq, true), false);
  await sending.settle(message.seq, receipt(message));
  assert.equal(sending.outbox.size, 0);
  assert.deepEqual(lines, ["round 1: few-shot accepted"]);
});

test("a restarted process sends the earlier one's contributions, with its own boot, until their receipt", async () => {
  const disk = new MemoryDisk();
  const first = await life(disk);
  await first.sending.keep(update(4));
  const second = await life(disk, 8n);
  await second.sending.send(1, true);
  assert.deepEqual([second.sent[0].boot, second.sent[0].seq, second.sent[0].round], [8n, 1, 4]);
  assert.equal(second.sending.outbox.named(receipt({ ...second.sent[0], boot: 7n })), null);
  assert.ok(second.sending.outbox.named(receipt(second.sent[0])));
});

test("scalars like accepted ones are sent in compact form, the first time only", async () => {
  const { sending, sent } = await life();
  const kind = "zeroth-order";
  const first = await sending.keep(update(1, { kind, body: scalars(1, 2) }));
  await sending.send(first.seq, true);
  await sending.settle(first.seq, receipt(first));
  const next = await sending.keep(update(2, { kind, body: scalars(3, 4) }));
  assert.equal(await sending.send(next.seq, true), true);
  assert.ok(sent[1].short.length < 30, "in few bytes");
  assert.equal(await sending.send(next.seq, false), false);
  assert.equal(sent[2].round, 2);
});

test("masked scalars never go in compact form, nor scalars like masked ones", async () => {
  const mask = { key: new Uint8Array(32), tags: [new Uint8Array(16)] };
  for (const [before, after] of [[null, mask], [mask, null], [mask, mask]]) {
    const { sending } = await life();
    const scalar = (round, of) => update(round, { kind: "zeroth-order", body: scalars(1, 2), mask: of });
    const first = await sending.keep(scalar(1, before));
    await sending.send(first.seq, true);
    await sending.settle(first.seq, receipt(first));
    const next = await sending.keep(scalar(2, after));
    assert.equal(await sending.send(next.seq, true), false);
  }
});

test("nothing goes in compact form to an aggregator that may be another", async () => {
  const { sending } = await life();
  const kind = "zeroth-order";
  const first = await sending.keep(update(1, { kind, body: scalars(1, 2) }));
  await sending.send(first.seq, true);
  await sending.settle(first.seq, receipt(first));
  sending.forget();
  const next = await sending.keep(update(2, { kind, body: scalars(3, 4) }));
  assert.equal(await sending.send(next.seq, true), false);
});

test("a contribution whose round is over is answered, and one of a task that is done is not", async () => {
  const { sending, lines } = await life();
  const [first, second] = [await sending.keep(update(1)), await sending.keep(update(2))];
  await sending.close(first.seq, true);
  await sending.close(second.seq, false);
  assert.deepEqual([sending.outbox.size, sending.outbox.settled.round], [0, 1]);
  assert.deepEqual(lines, [
    "round 1: few-shot: the round is over",
    "round 2: few-shot was not receipted before the task was done",
  ]);
});
