import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDisk } from "../device/disk.js";
import { own } from "../device/disk_owner.js";
import { Outbox } from "../device/outbox.js";
import { contribution } from "./contributions.js";

async function leftBy(name) {
  const disk = new MemoryDisk();
  await own(disk, name, () => {});
  const outbox = await Outbox.open(disk);
  await outbox.add(contribution(1, 4));
  await outbox.add(contribution(2, 5));
  return disk;
}

test("contributions without a receipt still wait after a restart under the same name", async () => {
  const disk = await leftBy("phone-1");
  await own(disk, "phone-1", assert.fail);
  assert.deepEqual([...(await Outbox.open(disk))], [contribution(1, 4), contribution(2, 5)]);
});

test("under another name they are not sent, and their round is not worked on: they could count twice", async () => {
  const disk = await leftBy("phone-1");
  const lines = [];
  await own(disk, "phone-2", (_, line) => lines.push(line));
  assert.deepEqual(lines, [4, 5].map((round) => `round ${round}: full was made as phone-1, and is not sent`));
  const outbox = await Outbox.open(disk);
  assert.equal(outbox.size, 0);
  assert.deepEqual([outbox.settled.run, outbox.settled.round], ["r1", 5]);
  await own(disk, "phone-2", assert.fail);
});
