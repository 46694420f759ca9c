import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDisk } from "../device/disk.js";
import { DataError, DiskError } from "../device/errors.js";
import { Samples } from "../device/samples.js";

const SPEC = { shape: [1, 2, 2], scale: 0.5, mean: [1], std: [2], dtype: "float32", vocabulary: null };
const opened = (disk, labels = ["no", "yes"]) => new Samples(disk, SPEC, labels).open();
const many = (count) => new Uint8Array(Uint32Array.from({ length: count }, (_, i) => i * 2654435761).buffer);

test("samples stay on the disk, with their labels, in the order in which they came", async () => {
  const disk = new MemoryDisk();
  const samples = await opened(disk);
  await samples.add("yes", Uint8Array.of(1, 2, 3, 4), 1000);
  await samples.add("yes", Float32Array.of(0.5, 6, 7, 8), 2000);
  await samples.add("no", Uint8Array.of(9, 9, 9, 9), 1500);
  const again = await opened(disk);
  assert.deepEqual(again.list("yes").map(({ id }) => [...again.raw(id)]), [[0.5, 6, 7, 8], [1, 2, 3, 4]]);
  assert.deepEqual(again.counts().map(({ training, held }) => training + held), [1, 2]);
});

test("windows of another rate, or of one that was not known, are not taken for those of a task", async () => {
  const disk = new MemoryDisk();
  const at = (more) => new Samples(disk, { ...SPEC, shape: [1, 4], window: { step: 4, columns: [], ...more } }, ["no"]).open();
  await (await at({ rate: 50 })).add("no", Float32Array.of(1, 2, 3, 4), 1);
  const counts = [];
  for (const more of [{ rate: 50 }, { rate: 100 }, {}]) counts.push((await at(more)).count());
  assert.deepEqual(counts, [1, 0, 0]);
});

test("about a fifth of the samples is held out of training, always the same ones", async () => {
  const disk = new MemoryDisk();
  const samples = await opened(disk);
  await samples.add("no", many(1200), 1);
  const [{ training, held: holdout }] = samples.counts();
  assert.equal(training + holdout, 1200);
  assert.ok(holdout > 180 && holdout < 300, `${holdout} held out`);
  assert.equal(samples.training().y.length, training);
  assert.deepEqual((await opened(disk)).held(), samples.held());
});

test("training samples are prepared, and have the task's class numbers", async () => {
  const samples = await opened(new MemoryDisk());
  for (let at = 0; at < 12; at++) await samples.add("Yes ", Uint8Array.of(at, 2, 4, 6), at);
  const { x, y, shape } = samples.training();
  assert.deepEqual(shape, [1, 2, 2]);
  assert.deepEqual([...x.slice(1, 4)], [0, 0.5, 1]); // (raw * 0.5 - 1) / 2
  assert.ok(y.length >= 6 && y.every((label) => label === 1));
});

test("one sample, those of a label, or all can be deleted, also from the disk", async () => {
  const disk = new MemoryDisk();
  const samples = await opened(disk);
  await samples.add("no", Uint8Array.of(1, 1, 1, 1, 2, 2, 2, 2), 1);
  await samples.add("yes", Uint8Array.of(3, 3, 3, 3), 2);
  const two = samples.list("no").find(({ id }) => samples.raw(id)[0] === 2);
  await samples.remove(two.id);
  assert.deepEqual((await opened(disk)).list("no").map(({ id }) => samples.raw(id)[0]), [1]);
  await samples.clear("no");
  assert.deepEqual((await opened(disk)).counts().map(({ training, held }) => training + held), [0, 1]);
  await samples.clear();
  assert.deepEqual(await disk.keys("samples/"), []);
});

test("a sample that the disk fails to delete is still there, unchanged", async () => {
  const disk = new MemoryDisk();
  const samples = await opened(disk);
  await samples.add("no", many(40), 1);
  const before = [samples.counts(), samples.training(), samples.held()];
  disk.put = () => Promise.reject(new DiskError("full"));
  await assert.rejects(samples.remove(samples.list("no")[0].id), DiskError);
  assert.deepEqual([samples.counts(), samples.training(), samples.held()], before);
});

test("samples that come during a reading are there after the next one, whichever ends first", async () => {
  const disk = new MemoryDisk();
  const page = await opened(disk);
  await page.add("no", many(3), 1);
  const samples = new Samples(disk, SPEC, ["no", "yes"]);
  const first = samples.open();
  await page.add("yes", many(2), 2);
  await Promise.all([first, samples.open()]);
  assert.deepEqual(samples.counts().map(({ training, held }) => training + held), [3, 2]);
});

test("a sample is read, hashed and prepared once, and counting them prepares none", async (t) => {
  const disk = new MemoryDisk();
  const page = await opened(disk);
  const done = { read: 0, hashed: 0, prepared: 0 };
  const hashing = t.mock.method(crypto.subtle, "digest");
  const spec = { ...SPEC, get scale() { return (done.prepared += 1) && 0.5; } }; // read once for each group
  const reading = Object.assign(new MemoryDisk(), {
    keys: (prefix) => disk.keys(prefix),
    get: async (key) => (done.read += 1) && disk.get(key),
  });
  for (let at = 0; at < 20; at += 1) await page.add("no", many(1), at);
  page.touched();
  hashing.mock.resetCalls();
  const worker = await new Samples(reading, spec, ["no", "yes"]).open();
  assert.equal(worker.count(), worker.counts()[0].training);
  assert.deepEqual([done.read, hashing.mock.callCount(), done.prepared], [20, 20, 0]);
  const before = worker.training();
  assert.equal(worker.training(), before); // the same object, because nothing has changed
  const first = done.prepared;
  await page.add("yes", Uint8Array.of(1, 2, 3, 4), 21);
  hashing.mock.resetCalls();
  const keys = page.touched();
  await worker.refresh(keys);
  assert.deepEqual([keys.length, done.read, hashing.mock.callCount()], [1, 21, 1]);
  assert.deepEqual([worker.training().y.length + worker.held().y.length, done.prepared], [21, first + first / 20]);
  assert.deepEqual(worker.training(), (await opened(disk)).training());
  assert.deepEqual(page.touched(), []);
});

test("samples deleted elsewhere are gone after a refresh, and failed readings are repeated the next time", async () => {
  const disk = new MemoryDisk();
  const page = await opened(disk);
  await page.add("no", many(3), 1);
  await page.add("yes", many(2), 2);
  const worker = await opened(disk);
  assert.equal(worker.training().y.length + worker.held().y.length, 5);
  page.touched();
  await page.remove(page.list("no")[0].id);
  await page.clear("yes");
  const { get } = disk;
  disk.get = () => Promise.reject(new DiskError("closed"));
  await assert.rejects(worker.refresh(page.touched()), DiskError);
  disk.get = get;
  await worker.refresh([]);
  assert.deepEqual(worker.counts(), page.counts());
  assert.deepEqual([worker.training(), worker.held()], [page.training(), page.held()]);
});

test("a label that the task does not have, and values that are no sample, are refused", async () => {
  const samples = await opened(new MemoryDisk());
  await assert.rejects(samples.add("maybe", many(1), 1), /'maybe' is not one of this task: no, yes/);
  await assert.rejects(samples.add("no", many(1).slice(1), 1), DataError);
  await assert.rejects(samples.add("no", Float32Array.of(1, 2, 3, NaN), 1), DataError);
});

test("whole numbers are class numbers, unless labels are numbers", async () => {
  assert.equal((await opened(new MemoryDisk())).number(1), 1);
  const numbers = await opened(new MemoryDisk(), ["3", "1"]);
  assert.equal(numbers.number(1), 1);
  assert.throws(() => numbers.number(0), DataError);
});

test("another task's samples are not touched", async () => {
  const disk = new MemoryDisk();
  const other = new Samples(disk, { ...SPEC, shape: [4] }, ["a", "no"]);
  await other.add("a", many(2), 1);
  await other.add("no", many(1), 1);
  const samples = await opened(disk);
  assert.deepEqual(samples.list("no"), []);
  await samples.clear();
  assert.equal((await disk.keys("samples/")).length, 2);
});
