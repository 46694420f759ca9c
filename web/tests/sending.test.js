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

const made = (round, more = {}) => ({
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
  const said = [];
  const lines = [];
  const under = { way: 0 };
  const read = (topic, payload) => (topic.endsWith("/c") ? { short: payload } : decode(Contribution, payload));
  const publish = (topic, payload) => said.push(read(topic, payload));
  const messages = new DeviceMessages("dev", boot);
  messages.link = { publish, unacknowledged: () => under.way, bytesUp: 0, bytesDown: 0 };
  const log = (_level, line) => lines.push(line);
  const sending = new ContributionSender(await Outbox.open(disk, log), messages, log);
  return { sending, said, lines, under };
}

test("a contribution without a receipt is sent again after 10 s of silence, then 20, 40 and at most 60", async () => {
  const { sending, said } = await life();
  await sending.keep(made(1));
  const at = [];
  for (let now = 0; now <= 260; now += 1) {
    await sending.due(now);
    if (said.length > at.length) at.push(now);
  }
  assert.deepEqual(at, [0, 10, 30, 70, 130, 190, 250]);
});

test("while the link carries anything, the wait for a receipt does not begin", async () => {
  const { sending, said, under } = await life();
  await sending.keep(made(1));
  await sending.due(0);
  under.way = 1;
  for (let now = 1; now <= 100; now += 1) await sending.due(now);
  assert.equal(said.length, 1);
  under.way = 0;
  await sending.due(109);
  assert.equal(said.length, 1);
  await sending.due(110);
  assert.equal(said.length, 2);
});

test("a receipt ends the sending and gives bytes fetched and seconds; a second one changes nothing", async () => {
  const { sending, lines } = await life();
  const blob = { sha: new Uint8Array(32).fill(3), size: 70_000 };
  const kept = await sending.keep(made(1, { body: new Uint8Array(), blob }));
  await sending.due(5);
  const settled = await sending.settle(receipt(kept), 9);
  assert.deepEqual([settled.bytes, settled.seconds, settled.message.round], [70_000, 4, 1]);
  assert.equal(await sending.settle(receipt(kept), 10), null);
  assert.equal(sending.outbox.size, 0);
  assert.deepEqual(lines, ["round 1: few-shot accepted"]);
});

test("a restarted process sends the earlier one's contributions, with its own boot, until their receipt", async () => {
  const disk = new MemoryDisk();
  const first = await life(disk);
  await first.sending.keep(made(4));
  const second = await life(disk, 8n);
  await second.sending.due(0);
  assert.deepEqual([second.said[0].boot, second.said[0].seq, second.said[0].round], [8n, 1, 4]);
  assert.equal(await second.sending.settle(receipt({ ...second.said[0], boot: 7n }), 1), null);
  assert.ok(await second.sending.settle(receipt(second.said[0]), 1));
});

test("without room at the aggregator, sending is put off for as long as the receipt says", async () => {
  const { sending, said, lines } = await life();
  const kept = await sending.keep(made(1));
  await sending.due(0);
  await sending.settle(receipt(kept, { status: "refused", reason: "no room", retry_after_s: 30 }), 1);
  await sending.due(30);
  assert.equal(said.length, 1);
  await sending.due(31);
  assert.equal(said.length, 2);
  assert.deepEqual(lines, ["round 1: few-shot again in 30 s: no room"]);
});

test("scalars like accepted ones are sent in compact form, and the end of the round ends their sending", async () => {
  const { sending, said } = await life();
  const kind = "zeroth-order";
  const first = await sending.keep(made(1, { kind, body: scalars(1, 2) }));
  await sending.due(0);
  await sending.settle(receipt(first), 1);
  await sending.keep(made(2, { kind, body: scalars(3, 4) }));
  await sending.due(2);
  assert.ok(said[1].short.length < 30, "in few bytes");
  await sending.over("r", 3);
  assert.equal(sending.outbox.size, 0);
  assert.equal(sending.outbox.answered("r", 2), true);
});

test("after a lost link all contributions are due at once, and whole, but those that the link still has", async () => {
  const { sending, said, under } = await life();
  await sending.keep(made(1));
  await sending.keep(made(2));
  await sending.due(0);
  under.way = 1;
  sending.restart();
  under.way = 0;
  await sending.due(1);
  assert.deepEqual(said.map((one) => one.round), [1, 2, 1]);
});

test("contributions to a run that is over are not sent any more", async () => {
  const { sending, lines } = await life();
  await sending.keep(made(1));
  await sending.keep(made(2, { run: "other" }));
  await sending.drop("r");
  assert.deepEqual([...sending.outbox].map((one) => one.run), ["other"]);
  assert.deepEqual(lines, ["round 1: few-shot was not receipted before the task was done"]);
});
