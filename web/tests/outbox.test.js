import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { MemoryDisk } from "../device/disk.js";
import { Contribution, encode } from "../device/messages.js";
import { Outbox } from "../device/outbox.js";
import { FileDisk } from "../node/disk_files.js";
import { contribution } from "./contributions.js";

const receipt = (seq, round, more = {}) => ({
  boot: 7n,
  seq,
  round,
  status: "accepted",
  reason: "",
  retry_after_s: 0,
  ...more,
});

/** Take a receipt; returns the contribution that it is for, null if there is none. */
async function settle(outbox, name) {
  const message = outbox.named(name);
  if (message) await outbox.end(message);
  return message;
}

test("a contribution is on disk until its receipt, also across restarts", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "outbox-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const disk of [new MemoryDisk(), new FileDisk(folder)]) {
    const outbox = await Outbox.open(disk);
    await outbox.add(contribution(1, 4));
    await outbox.add(contribution(2, 5));
    const later = await Outbox.open(disk);
    assert.deepEqual([...later], [contribution(1, 4), contribution(2, 5)]);
    assert.equal(later.nextSeq, 3);
    assert.deepEqual(await settle(later, receipt(1, 4)), contribution(1, 4));
    assert.deepEqual([...(await Outbox.open(disk))], [contribution(2, 5)]);
  }
});

test("a receipt for another boot, round or number settles nothing", async () => {
  const outbox = await Outbox.open(new MemoryDisk());
  await outbox.add(contribution(1, 4));
  const others = [receipt(1, 4, { boot: 8n }), receipt(1, 5), receipt(2, 4), receipt(0, 5), receipt(0, 4, { boot: 6n })];
  for (const other of others) assert.equal(await settle(outbox, other), null);
  assert.equal(outbox.size, 1);
});

test("a receipt without a number is for the latest of its round", async () => {
  const outbox = await Outbox.open(new MemoryDisk());
  await outbox.add(contribution(1, 4, { task: "words" }));
  await outbox.add(contribution(2, 4));
  assert.equal((await settle(outbox, receipt(0, 4))).seq, 2);
});

test("a process uses no number twice, and none of a contribution that waits", async () => {
  const disk = new MemoryDisk();
  const outbox = await Outbox.open(disk);
  await outbox.add(contribution(outbox.nextSeq, 4));
  await settle(outbox, receipt(1, 4));
  assert.equal(outbox.nextSeq, 2);
  await outbox.add(contribution(9, 5));
  assert.equal((await Outbox.open(disk)).nextSeq, 10);
});

test("an answered round is known after a restart, also after a later receipt of an older round", async () => {
  const disk = new MemoryDisk();
  const outbox = await Outbox.open(disk);
  for (const [seq, round] of [[1, 4], [2, 5], [3, 6]]) await outbox.add(contribution(seq, round));
  await settle(outbox, receipt(2, 5));
  await settle(outbox, receipt(1, 4));
  const later = await Outbox.open(disk);
  assert.deepEqual([later.settled.round, ...[...later].map((message) => message.round)], [5, 6]);
  await later.drop(3);
  assert.deepEqual([...(await Outbox.open(disk))], []);
});

test("the settled contribution of a run is replaced by that of the next run", async () => {
  const outbox = await Outbox.open(new MemoryDisk());
  await outbox.add(contribution(1, 9));
  await settle(outbox, receipt(1, 9));
  await outbox.add(contribution(2, 1, { run: "r2" }));
  await settle(outbox, receipt(2, 1));
  assert.deepEqual([outbox.settled.run, outbox.settled.round], ["r2", 1]);
});

test("a contribution whose settling is interrupted is sent again, and counts once", async () => {
  const disk = new MemoryDisk();
  const outbox = await Outbox.open(disk);
  await outbox.add(contribution(1, 4));
  await disk.put("outbox/settled", encode(Contribution, contribution(1, 4)));
  const later = await Outbox.open(disk);
  assert.equal(later.size, 1);
  await settle(later, receipt(1, 4, { status: "duplicate" }));
  assert.deepEqual(await disk.keys(), ["outbox/settled"]);
});

test("an unreadable file is dropped, and that is logged", async () => {
  const disk = new MemoryDisk();
  await disk.put("outbox/00000003", Uint8Array.of(1, 2));
  const lines = [];
  const outbox = await Outbox.open(disk, (level, line) => lines.push(`${level} ${line}`));
  assert.equal(outbox.size, 0);
  assert.deepEqual(await disk.keys(), []);
  assert.match(lines[0], /^warning dropped outbox\/00000003: not a Contribution/);
});

test("on a full disk, adding a contribution fails, and it does not wait", async () => {
  const outbox = await Outbox.open(new MemoryDisk(20));
  await assert.rejects(outbox.add(contribution(1, 4)), { name: "DiskError" });
  assert.equal(outbox.size, 0);
});
