import assert from "node:assert/strict";
import { test } from "node:test";

import { BLOCK, Blobs, blobOf, blockLength } from "../device/blobs.js";
import { hex } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { Downloads } from "../device/downloads.js";
import { Pull, UNKNOWN, answerGet } from "../device/transfer.js";
import { content } from "./content.js";
import { vectors } from "./vectors.js";

const cases = vectors("transfer");

cases.pulls.forEach((script, at) => {
  test(`a pull asks for the same blocks at the same times as in Python: ${at}`, async () => {
    const data = content(cases.pulled);
    const blob = await blobOf(data);
    const pull = new Pull(blob, await (await Blobs.open(new MemoryDisk())).partial(blob));
    const deeds = {
      wanted: ({ now }) => pull.wanted(now),
      received: ({ index, cut, now }) => {
        const end = index * BLOCK + blockLength(blob, index) - (cut ? 1 : 0);
        return pull.received(index, data.slice(index * BLOCK, end), now);
      },
      restart: () => pull.restart() ?? null,
      expect: ({ now }) => pull.expect(now) ?? null,
    };
    for (const step of script) {
      assert.deepEqual(await deeds[step.do](step), step.says, JSON.stringify(step));
      assert.deepEqual([pull.unanswered, pull.refused], [step.unanswered, step.refused]);
    }
    assert.ok(pull.done);
    await pull.finish();
  });
});

/** Downloads from one store to another; `lossy(index, data)` gives the block as it arrives, null if it is lost. */
async function pair(lossy = (_, data) => data) {
  const remote = await Blobs.open(new MemoryDisk());
  const disk = new MemoryDisk();
  const blobs = await Blobs.open(disk);
  const gets = [];
  const arrived = [];
  const downloads = new Downloads(blobs, {
    ask: (get) => gets.push(get),
    arrived: (blob, seconds) => arrived.push([hex(blob.sha), seconds]),
  });
  const deliver = async (now) => {
    for (const get of gets.splice(0)) {
      for await (const { index, data } of answerGet(remote, get)) {
        const came = index === UNKNOWN ? data : lossy(index, data);
        if (came) await downloads.received(get.blob.sha, index, came, now);
      }
    }
  };
  return { remote, blobs, disk, downloads, deliver, gets, arrived };
}

test("two blobs arrive at the same time over a link that loses blocks, and are verified", async () => {
  let turn = 0;
  const { remote, blobs, downloads, deliver, arrived } = await pair((_, data) => ((turn += 1) % 3 ? data : null));
  const all = [await remote.put(content(20 * BLOCK)), await remote.put(content(5 * BLOCK + 1))];
  let now = 0;
  for (; arrived.length < 2 && now < 100; now += 1) {
    await downloads.advance(all.filter((blob) => !blobs.has(blob)), now);
    await deliver(now);
  }
  assert.equal(arrived.length, 2);
  assert.deepEqual(await blobs.get(all[0]), content(20 * BLOCK));
  assert.ok(arrived.every(([, seconds]) => seconds > 0));
});

test("a blob that the sender does not have is given up until it is wanted again", async () => {
  const { remote, downloads, deliver, blobs } = await pair();
  const blob = await blobOf(content(BLOCK));
  assert.ok(await downloads.advance([blob], 0));
  await deliver(1);
  assert.equal(await downloads.advance([blob], 2), false);
  await remote.put(content(BLOCK));
  assert.ok(await downloads.advance([blob], 3));
  await deliver(4);
  assert.ok(await downloads.advance([blob], 5));
  assert.ok(blobs.has(blob));
});

test("a blob with a wrong hash is fetched once more, and then refused", async () => {
  const { remote, downloads, deliver, blobs } = await pair((_, data) => new Uint8Array(data.length));
  const blob = await remote.put(content(3 * BLOCK));
  for (let times = 0; times < 2; times += 1) {
    assert.ok(await downloads.advance([blob], 0));
    await deliver(1);
    await assert.rejects(downloads.advance([blob], 2), { name: "BlobError", message: /another hash/ });
  }
  assert.equal(await downloads.advance([blob], 3), false);
  assert.ok(!blobs.has(blob));
});

test("expected blocks are taken unasked, and those that do not come are asked for", async () => {
  const { remote, downloads, gets, blobs } = await pair();
  const bytes = content(9 * BLOCK);
  const blob = await remote.put(bytes);
  await downloads.expect(blob, 0);
  for (const index of [0, 1, 2, 3, 4, 5, 6]) {
    await downloads.received(blob.sha, index, bytes.slice(index * BLOCK, (index + 1) * BLOCK), 0.5);
  }
  await downloads.advance([blob], 1);
  assert.deepEqual(gets.map((get) => get.blocks), [[8]]);
  await downloads.advance([blob], 4);
  assert.deepEqual(gets.at(-1).blocks, [7, 8]);
  assert.ok(!blobs.has(blob));
});

test("after a lost link, missing blocks are asked for again at once", async () => {
  const { remote, downloads, gets } = await pair();
  const bytes = content(3 * BLOCK);
  const blob = await remote.put(bytes);
  await downloads.advance([blob], 0);
  await downloads.received(blob.sha, 1, bytes.slice(BLOCK, 2 * BLOCK), 0.1);
  downloads.restart();
  await downloads.advance([blob], 0.2);
  assert.deepEqual(gets.map((get) => get.blocks), [[0, 1, 2], [0, 2]]);
});

test("blocks that nobody waits for are dropped, and prune keeps blobs that are being fetched", async () => {
  const { remote, downloads, blobs, disk } = await pair();
  const coming = await remote.put(content(2 * BLOCK));
  const old = await blobs.put(content(77));
  const [bundle, part] = [await blobs.put(content(10)), await blobs.put(content(11))];
  await downloads.received(old.sha, 0, content(77), 0);
  await downloads.advance([coming], 0);
  await downloads.received(coming.sha, 0, content(BLOCK), 0);
  await downloads.prune({ bundle, base: { checkpoint: [part], log: [] }, family: [], aside: null }, [null]);
  assert.deepEqual([bundle, part, old].map((blob) => blobs.has(blob)), [true, true, false]);
  assert.equal((await disk.keys("partial/")).length, 1);
});
