import assert from "node:assert/strict";
import { test } from "node:test";

import { findRoute, stepsOf } from "../device/base_route.js";
import { Blobs, blobOf } from "../device/blobs.js";
import { fromHex, hex } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { vectors } from "./vectors.js";

const cases = vectors("base_route");
const LINE = new Uint8Array(8);
const blobsOf = (list) => list.map(([sha, size]) => ({ sha: fromHex(sha), size }));

/** A stretch of so many steps of this width. */
const stretch = (first, count, width) => ({
  round: first,
  generator: "philox/1",
  tunable: "all",
  lr: 0.01,
  width,
  form: "f2",
  scalars: new Uint8Array(2 * width * count),
  seeds: 5n,
  shares: new Uint8Array(),
});

function baseOf({ checkpoint, whole, steps, at, width, tail, log }) {
  return {
    checkpoint: blobsOf(checkpoint),
    sha: new Uint8Array(whole ? 32 : 4),
    line: LINE,
    steps,
    at,
    tail: tail ? [stretch(at - tail, tail, width)] : [],
    log: blobsOf(log),
  };
}

test("the route to a base is Python's, from every replay state and with any blobs here", () => {
  for (const example of cases.cases) {
    const state = example.state && { line: fromHex(example.state.line), at: example.state.at, weights: new Map() };
    const here = new Set(example.here);
    const route = findRoute(baseOf(example.base), state, (blob) => here.has(hex(blob.sha)));
    const plain = route && {
      anew: route.start === null,
      steps: route.steps,
      needed: route.needed.map(({ sha, size }) => [hex(sha), size]),
    };
    assert.deepEqual(plain, example.route, JSON.stringify(example));
  }
  const kinds = new Set(cases.cases.map(({ route: route }) => (route === null ? "none" : route.anew)));
  assert.equal(kinds.size, 3, "every outcome is among the cases");
});

test("the steps of a route come from the offer, or from the log", async () => {
  const [{ segments, tail, at, gone }] = cases.logged;
  const blobs = await Blobs.open(new MemoryDisk());
  const log = [];
  for (const segment of segments) log.push(await blobs.put(fromHex(segment)));
  const base = { at, log, tail: [stretch(tail[0], tail[1] - tail[0], 2)] };
  for (const { steps, from, rounds, error } of gone) {
    const replay = stepsOf({ start: null, steps, needed: log.slice(from) }, base, blobs);
    if (error) await assert.rejects(replay, { name: "UnusableBase", message: error });
    else assert.deepEqual((await replay).map((step) => step.round), rounds);
  }
});

test("a damaged log or tail makes the base unusable, and a missing log is a BlobError", async () => {
  const blobs = await Blobs.open(new MemoryDisk());
  const rubbish = await blobs.put(Uint8Array.of(0xc1));
  const base = { checkpoint: [], sha: new Uint8Array(32), line: LINE, at: 600, steps: 600, tail: [], log: [rubbish] };
  const damaged = { ...base, tail: [{ ...stretch(1, 1, 2), width: 0 }] };
  const long = { start: null, steps: 600, needed: [rubbish] };
  await assert.rejects(stepsOf(long, base, blobs), { name: "UnusableBase", message: /log of the base is damaged/ });
  assert.throws(() => findRoute(damaged, null, () => true), { name: "UnusableBase", message: /last steps .* damaged/ });
  const away = await blobOf(Uint8Array.of(1));
  const missingLog = { ...base, log: [away] };
  await assert.rejects(stepsOf({ ...long, needed: [away] }, missingLog, blobs), { name: "BlobError" });
});
