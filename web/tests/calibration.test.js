import assert from "node:assert/strict";
import { test } from "node:test";

import { utf8 } from "../device/bytes.js";
import { Speed } from "../device/cost.js";
import { MemoryDisk } from "../device/disk.js";
import { Measurements, grown } from "../device/calibration.js";

const SPEED = new Speed(2e9, {
  seconds: new Map([["forward", 0.001]]),
  opening: new Map([["forward", 0.2]]),
  heldBytes: new Map([["forward", 12]]),
  stepS: 1e-5,
  source: "measured on this bundle",
});
const LEARNT = { speed: SPEED, corrections: new Map([["full", 1.5]]), growth: new Map([["full", 1.2]]) };

test("what was measured is there in a later life, by its name", async () => {
  const disk = new MemoryDisk();
  await new Measurements(disk, () => {}).put("bundle@engine", LEARNT);
  const later = new Measurements(disk, () => {});
  assert.deepEqual(await later.get("bundle@engine"), LEARNT);
  assert.equal((await later.get("bundle@engine")).speed.of("forward", 7), 0.001);
  assert.equal(await later.get("another"), null);
});

test("what cannot be read is measured anew, what cannot be kept is known until the end; both are said", async () => {
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
  outgrew: [],
  peakMemoryBytes: 200,
  ...more,
});
const profile = (growth) => ({ growth: new Map(Object.entries(growth)), memory: { residentBytes: 100 } });

test("a kind that took more memory than was thought is taken to do so again, and that fades", () => {
  assert.deepEqual([...grown(profile({}), outcome())], [["full", 2]]); // 100 bytes more, 50 were predicted
  const after = grown(profile({ full: 2, peft: 3 }), outcome({ peakMemoryBytes: 110 }));
  assert.deepEqual([...after].map(([kind, factor]) => [kind, factor.toFixed(2)]), [["full", "1.90"], ["peft", "2.80"]]);
});

test("a kind that was given up for want of memory is taken to hold a quarter more; four times at most", () => {
  const without = outcome({ contribution: null, outgrew: ["full"] });
  assert.deepEqual([...grown(profile({}), without)], [["full", 1.25]]);
  assert.deepEqual([...grown(profile({ full: 3.9 }), without)], [["full", 4]]);
});

test("nothing is learnt of a kind after which one was given up, or where nobody says what memory was held", () => {
  assert.deepEqual([...grown(profile({}), outcome({ gaveUp: ["full given up"] }))], []);
  assert.deepEqual([...grown(profile({}), outcome({ peakMemoryBytes: 0 }))], []);
});
