import assert from "node:assert/strict";
import { test } from "node:test";

import { MemoryDisk } from "../device/disk.js";
import { ErrorFeedback } from "../device/error_feedback.js";
import { float32 } from "../device/flat.js";

const filled = (value) => float32([3], new Float32Array(3).fill(value));
const rest = (values) => new Map(Object.entries(values).map(([name, value]) => [name, filled(value)]));
const values = (tensors) => Object.fromEntries([...tensors].map(([name, { data }]) => [name, data[0]]));
const waiting = (...rounds) => new Set(rounds);

function folder() {
  const disk = new MemoryDisk();
  const lines = [];
  return { disk, lines, left: new ErrorFeedback(disk, (_level, line) => lines.push(line)) };
}

const put = (left, round, values_, waits = waiting(), run = "r") =>
  left.put({ run, kind: "full", round, left: rest(values_) }, waits);
const get = async (left, ...rounds) => values(await left.get("r", "full", waiting(...rounds)));
const settle = (left, round, counts) => left.settle({ run: "r", kind: "full", round }, counts);

test("what is left out is added to the next update of the kind", async () => {
  const { left } = folder();
  assert.deepEqual(await get(left), {});
  await put(left, 1, { w: 5 });
  await settle(left, 1, true);
  assert.deepEqual(await get(left), { w: 5 });
  assert.deepEqual(values(await left.get("r", "peft", waiting())), {});
  assert.deepEqual(values(await left.get("s", "full", waiting())), {});
});

test("an update that does not count, or was never sent, takes nothing along", async () => {
  const { left } = folder();
  await put(left, 1, { w: 5 });
  await settle(left, 1, true);
  await put(left, 2, { w: 2, b: 1 });
  assert.deepEqual(await get(left, 2), { w: 2, b: 1 });
  await settle(left, 2, false);
  await settle(left, 2, false); // the receipt may come twice
  assert.deepEqual(await get(left), { w: 5 });
  await put(left, 3, { w: 4 });
  assert.deepEqual(await get(left), { w: 5 });
});

test("the first save of a run removes what another run has left", async () => {
  const { left, disk } = folder();
  await put(left, 1, { w: 5 });
  await put(left, 1, { w: 7 }, waiting(), "s");
  assert.deepEqual(await get(left, 1), {});
  assert.equal((await disk.keys()).length, 1);
});

test("a damaged file counts as empty, and that is logged", async () => {
  const { left, disk, lines } = folder();
  await put(left, 1, { w: 5 });
  const [key] = await disk.keys();
  await disk.put(key, (await disk.get(key)).slice(0, -5));
  assert.deepEqual(await get(left, 1), {});
  assert.match(lines[0], /not readable, and is lost/);
});

/** Whole numbers from a seed, the same in each test run. */
function* drawn(state) {
  for (;;) {
    state = (state * 1103515245 + 12345) % 2 ** 31;
    yield state >>> 8;
  }
}

test("what was sent and what is left add up to the updates that count, in any order of receipts", async () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const draw = drawn(seed);
    const next = (below) => draw.next().value % below;
    const { left } = folder();
    const open = new Map();
    let [exact, arrived] = [0, 0];
    const receipt = async (round, counts) => {
      await settle(left, round, counts);
      const { update, sent } = open.get(round);
      open.delete(round);
      if (counts) [exact, arrived] = [exact + update, arrived + sent];
    };
    for (let round = 1; round <= 8; round += 1) {
      const name = next(2) ? "w" : "b";
      const update = next(19) - 9;
      const before = await get(left, ...open.keys());
      const whole = update + (before[name] ?? 0);
      const sent = 4 * Math.round(whole / 4);
      await put(left, round, { ...before, [name]: whole - sent }, waiting(...open.keys()));
      open.set(round, { update, sent });
      const behind = next(4);
      while (open.size > behind) await receipt([...open.keys()].sort()[round % open.size], next(2) === 0);
    }
    for (const round of [...open.keys()]) await receipt(round, round % 2 === 0);
    const rest_ = Object.values(await get(left)).reduce((sum, value) => sum + value, 0);
    assert.equal(arrived + rest_, exact, `seed ${seed}`);
  }
});
