import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { BLOCK, Blobs, blobOf, blockCount, blockLength } from "../device/blobs.js";
import { fromHex, hex } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { BlobError, BlockError } from "../device/errors.js";
import { answerGet } from "../device/transfer.js";
import { FileDisk } from "../node/disk_files.js";
import { content } from "./content.js";
import { vectors } from "./vectors.js";

const cases = vectors("transfer");

/** A disk that outlives the store on it, and that a test can inspect. */
function disks(test) {
  const folder = mkdtempSync(join(tmpdir(), "disk-"));
  test.after(() => rmSync(folder, { recursive: true, force: true }));
  return [
    { of: "memory", disk: new MemoryDisk() },
    { of: "files", disk: new FileDisk(folder) },
  ];
}

const blockOf = (bytes, index) => bytes.slice(index * BLOCK, (index + 1) * BLOCK);

test("blobs have the same names and blocks as in Python", async () => {
  assert.equal(BLOCK, cases.block);
  for (const { size, sha, lengths } of cases.blobs) {
    const blob = await blobOf(content(size));
    assert.deepEqual([hex(blob.sha), blob.size, blockCount(blob)], [sha, size, lengths.length]);
    assert.deepEqual(lengths.map((_, index) => blockLength(blob, index)), lengths);
    assert.throws(() => blockLength(blob, lengths.length), BlockError);
    assert.throws(() => blockLength(blob, -1), BlockError);
  }
});

test("a Get is answered with the same blocks as in Python", async () => {
  const blobs = await Blobs.open(new MemoryDisk());
  const bytes = content(cases.blobs.at(-1).size);
  await blobs.put(bytes);
  for (const { sha, size, blocks, answer: expected } of cases.answers) {
    const answers = [];
    for await (const { index, data } of answerGet(blobs, { blob: { sha: fromHex(sha), size }, blocks })) {
      answers.push([index, data.length]);
      if (index >= 0) assert.deepEqual(data, blockOf(bytes, index));
    }
    assert.deepEqual(answers, expected);
  }
});

test("a blob that was put is there, also after the disk is opened again", async (t) => {
  for (const { of, disk } of disks(t)) {
    const blob = await (await Blobs.open(disk)).put(content(100_000));
    const later = await Blobs.open(disk);
    assert.ok(later.has(blob), of);
    assert.deepEqual(await later.get(blob), content(100_000));
    assert.ok(!later.has({ ...blob, size: 99_999 }));
    await later.remove(blob);
    assert.ok(!(await Blobs.open(disk)).has(blob));
  }
});

test("an interrupted download continues where it was", async (t) => {
  for (const { of, disk } of disks(t)) {
    const bytes = content(10 * BLOCK - 3);
    const blob = await blobOf(bytes);
    const first = await (await Blobs.open(disk)).partial(blob);
    for (const index of [7, 0, 9, 3]) assert.ok(await first.add(index, blockOf(bytes, index)));
    const store = await Blobs.open(disk);
    const second = await store.partial(blob);
    assert.deepEqual(second.missing(), [1, 2, 4, 5, 6, 8], of);
    for (const index of second.missing()) await second.add(index, blockOf(bytes, index));
    const last = await Blobs.open(disk); // opened again, with all blocks here but not put together
    await (await last.partial(blob)).finish();
    assert.deepEqual(await (await Blobs.open(disk)).get(blob), bytes);
    assert.deepEqual(await disk.keys("partial/"), [], "nothing is left of its blocks");
  }
});

test("a download that is interrupted while it is being finished is finished", async () => {
  const disk = new MemoryDisk();
  const bytes = content(2 * BLOCK);
  const blob = await blobOf(bytes);
  const store = await Blobs.open(disk);
  const partial = await store.partial(blob);
  for (const index of [0, 1]) await partial.add(index, blockOf(bytes, index));
  await disk.put(`blobs/${hex(blob.sha)}-${blob.size}`, bytes); // it ended before it deleted all blocks
  await disk.delete(`partial/${hex(blob.sha)}-${blob.size}/0`);
  const later = await Blobs.open(disk);
  const again = await later.partial(blob);
  assert.deepEqual(again.missing(), []);
  await again.finish();
  assert.deepEqual(await later.get(blob), bytes);
  assert.deepEqual(await disk.keys("partial/"), []);
});

test("a blob with blocks of another one has a wrong hash, and all of it is discarded", async () => {
  const disk = new MemoryDisk();
  const store = await Blobs.open(disk);
  const bytes = content(3 * BLOCK);
  const blob = await blobOf(bytes);
  const partial = await store.partial(blob);
  for (const index of [0, 1, 2]) await partial.add(index, blockOf(bytes, 0));
  await assert.rejects(partial.finish(), { name: "BlobError", message: /another hash/ });
  assert.deepEqual(partial.missing(), [0, 1, 2]);
  assert.deepEqual(await disk.keys(), []);
  for (const index of [0, 1, 2]) await partial.add(index, blockOf(bytes, index));
  await partial.finish();
  assert.ok(store.has(blob));
});

test("the hash shows that the disk has lost a block", async () => {
  const disk = new MemoryDisk();
  const store = await Blobs.open(disk);
  const bytes = content(2 * BLOCK);
  const blob = await blobOf(bytes);
  const partial = await store.partial(blob);
  for (const index of [0, 1]) await partial.add(index, blockOf(bytes, index));
  await disk.delete(`partial/${hex(blob.sha)}-${blob.size}/1`);
  await assert.rejects(partial.finish(), BlobError);
  assert.deepEqual(partial.missing(), [0, 1]);
});

test("blocks of a wrong length or number are refused, and a second copy changes nothing", async () => {
  const store = await Blobs.open(new MemoryDisk());
  const bytes = content(BLOCK + 10);
  const partial = await store.partial(await blobOf(bytes));
  await assert.rejects(partial.add(1, bytes.slice(0, 11)), BlockError);
  await assert.rejects(partial.add(2, new Uint8Array(10)), BlockError);
  assert.ok(await partial.add(1, blockOf(bytes, 1)));
  assert.ok(!(await partial.add(1, new Uint8Array(10))));
  assert.equal(await store.partial(await blobOf(bytes)), partial, "one object for one blob");
  await assert.rejects(partial.finish(), /lacks 1 block/);
});

test("a damaged blob is removed, so that it can be fetched again", async (t) => {
  for (const { disk } of disks(t)) {
    const blob = await (await Blobs.open(disk)).put(content(5000));
    await disk.put(`blobs/${hex(blob.sha)}-5000`, new Uint8Array(5000));
    const store = await Blobs.open(disk);
    await assert.rejects(store.get(blob), { name: "BlobError", message: /damaged/ });
    assert.ok(!store.has(blob));
    assert.deepEqual((await store.partial(blob)).missing(), [0]);
  }
});

test("a blob that the browser has cleared away is fetched anew", async () => {
  const disk = new MemoryDisk();
  const store = await Blobs.open(disk);
  const blob = await store.put(content(100));
  await disk.delete(`blobs/${hex(blob.sha)}-100`);
  await assert.rejects(store.get(blob), /fetch it first/);
  assert.ok(!store.has(blob));
  assert.deepEqual((await store.partial(blob)).missing(), [0]);
});

test("a full disk and a blob that is too large give a BlobError", async () => {
  const store = await Blobs.open(new MemoryDisk(1000), 5000);
  await assert.rejects(store.put(content(2000)), { name: "BlobError", message: /1000 are free/ });
  await assert.rejects(store.put(content(5001)), { name: "BlobError", message: /at most 5000/ });
  const partial = await store.partial(await blobOf(content(4000)));
  await assert.rejects(partial.add(0, content(4000)), BlobError);
  assert.deepEqual(partial.missing(), [0]);
});

test("all but the named blobs are pruned, also those that are being fetched", async () => {
  const disk = new MemoryDisk();
  const store = await Blobs.open(disk);
  const [staying, gone] = [await store.put(content(10)), await store.put(content(20))];
  const [coming, left] = [await blobOf(content(2 * BLOCK)), await blobOf(content(3 * BLOCK))];
  for (const blob of [coming, left]) await (await store.partial(blob)).add(0, content(BLOCK));
  await store.prune([staying, coming]);
  assert.ok(store.has(staying) && !store.has(gone));
  assert.deepEqual((await store.partial(coming)).missing(), [1]);
  assert.deepEqual((await store.partial(left)).missing(), [0, 1, 2]);
});

test("a disk of files keeps no half-written file, and no key leads out of its folder", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "disk-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const disk = new FileDisk(`${folder}/`);
  await disk.put("a/ü ~1/..x", Uint8Array.of(1));
  writeFileSync(join(folder, "a", "b.~00112233"), "half");
  assert.deepEqual(await disk.keys("a/"), ["a/ü ~1/..x"]);
  assert.deepEqual(await disk.get("a/ü ~1/..x"), Uint8Array.of(1));
  assert.equal(await disk.get("a/b"), null);
  await assert.rejects(disk.put("../out", Uint8Array.of(1)), { name: "DiskError" });
  await assert.rejects(disk.put("a/ü ~1", Uint8Array.of(1)), { name: "DiskError" });
  assert.deepEqual(readdirSync(folder), ["a"]);
  await disk.delete("a/ü ~1/..x");
  await disk.delete("a/ü ~1/..x");
  assert.deepEqual(await disk.keys(), []);
  assert.deepEqual(await new FileDisk(join(folder, "none")).keys(), []);
});
