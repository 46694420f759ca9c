import assert from "node:assert/strict";
import { test } from "node:test";

import { utf8 } from "../device/bytes.js";
import { Measurements, grown } from "../device/calibration.js";
import { Speed } from "../device/cost.js";
import { MemoryDisk } from "../device/disk.js";

const SPEED = new Speed(2e9, {
  seconds: new Map([["forward", 0.001]]),
  opening: new Map([["forward", 0.2]]),
  heldBytes: new Map([["forward", 12]]),
  stepS: 1e-5,
  source: "measured on this bundle",
});
const LEARNT = { speed: SPEED, corrections: new Map([["full", 1.5]]), growth: new Map([["full", 1.2]]) };

test("measurements are there after a restart, by name", async () => {
  const disk = new MemoryDisk();
  await new Measurements(disk, () => {}).put("bundle@engine", LEARNT);
  const later = new Measurements(disk, () => {});
  assert.deepEqual(await later.get("bundle@engine"), LEARNT);
  assert.equal((await later.get("bundle@engine")).speed.of("forward", 7), 0.001);
  assert.equal(await later.get("another"), null);
});

test("an unreadable file is measured anew, a failing disk keeps measurements in memory; both are logged", async () => {
  const disk = new MemoryDisk(20);
  await disk.put("speed", utf8('[["bundle@eng'));
  const lines = [];
  const measurements = new Measurements(disk, (_level, line) => lines.push(line));
  assert.equal(await measurements.get("bundle@engine"), null);
  await measurements.put("bundle@engine", LEARNT);
  assert.equal(await measurements.get("bundle@engine"), LEARNT);
  assert.match(lines[0], /not readable .*: measuring anew/);
  assert.match(lines[1], /cannot be kept: /);
});

const outcome = (more) => ({
  plan: { chosen: { kind: "full", cost: { peakMemoryBytes: 150 } } },
  contribution: {},
  gaveUp: [],
  outOfMemoryKinds: [],
  peakMemoryBytes: 200,
  ...more,
});
const profile = (growth) => ({ growth: new Map(Object.entries(growth)), memory: { residentBytes: 100 } });

test("a kind that took more memory than predicted is expected to do so again, and that fades", () => {
  assert.deepEqual([...grown(profile({}), outcome())], [["full", 2]]); // it grew by 100 bytes, 50 were predicted
  const after = grown(profile({ full: 2, peft: 3 }), outcome({ peakMemoryBytes: 110 }));
  assert.deepEqual([...after].map(([kind, factor]) => [kind, factor.toFixed(2)]), [["full", "1.90"], ["peft", "2.80"]]);
});

test("a kind given up for lack of memory is expected to take a quarter more, at most four times as much", () => {
  const without = outcome({ contribution: null, outOfMemoryKinds: ["full"] });
  assert.deepEqual([...grown(profile({}), without)], [["full", 1.25]]);
  assert.deepEqual([...grown(profile({ full: 3.9 }), without)], [["full", 4]]);
});

test("nothing is learnt from a kind that followed one given up, or if the memory held is not known", () => {
  assert.deepEqual([...grown(profile({}), outcome({ gaveUp: ["full given up"] }))], []);
  assert.deepEqual([...grown(profile({}), outcome({ peakMemoryBytes: 0 }))], []);
});
