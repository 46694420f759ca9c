import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex } from "../device/bytes.js";
import { MOMENTS, RIGHT, ROWS, SPREAD, chosenClasses, classCoverage, encode } from "../device/class_statistics.js";
import { expected, measureStatistics, statisticsOf, withClassStatistics } from "../device/class_statistics.js";
import { withoutClassStatistics, withoutMoments } from "../device/class_statistics.js";
import { toHalf } from "../device/half.js";
import { splitHeldOut } from "../device/held_out.js";
import { make } from "../device/kinds/registry.js";
import { project } from "../device/projection.js";
import { write } from "../device/safetensors.js";
import { vectors } from "./vectors.js";

const cases = vectors("class_statistics");
const COUNTS = { smallest_count: 2, samples: 40, most_classes: 0, hold_out: 0 };
const STATISTICS = { numbers: "float16", ...COUNTS, moments: true, features: 512, projection_seed: 0 };

test("64-bit numbers are rounded to 16 bits as in numpy", () => {
  const numbers = new Float64Array(fromHex(cases.halves.numbers).buffer);
  const bits = new Uint16Array(fromHex(cases.halves.bits).buffer);
  assert.ok(numbers.length > 200);
  numbers.forEach((number, at) => assert.equal(toHalf(number), bits[at], `${number}`));
});

for (const [at, example] of cases.encoded.entries()) {
  test(`class statistics of these features are Python's, byte for byte (${at})`, () => {
    const x = new Float32Array(fromHex(example.features).buffer);
    const sums = measureStatistics({ x, y: Int32Array.from(example.y) }, example.width, example.labels, example.smallest);
    const sent = encode(sums, example);
    assert.equal(hex(write(sent)), example.sent);
  });
}

test("held-out samples are Python's", () => {
  for (const { samples, share, device, rows } of cases.held_out) {
    const y = Int32Array.from({ length: samples }, (_, i) => i);
    const [holdout, rest] = splitHeldOut({ x: new Float32Array(2 * samples), y }, share, device);
    assert.deepEqual([...holdout.y], rows, `${samples} samples of ${device}, ${share}`);
    assert.deepEqual([...holdout.y, ...rest.y].sort((a, b) => a - b), [...y]);
  }
});

test("the classes that are sent are those that Python chooses", () => {
  assert.ok(cases.chosen.length > 100);
  for (const { present, most, rare, round, chosen: expected } of cases.chosen) {
    const classes = chosenClasses(present, most, { rare, round });
    assert.deepEqual(classes, expected, `${most} of ${present}, ${rare}, ${round}`);
  }
});

test("the classes of which statistics are sent, and could be sent, are counted", () => {
  const workload = { classCounts: [5, 1, 2, 0, 9] };
  const kind = (most) => make("class-means", { statistics: { ...STATISTICS, most_classes: most } });
  const of = (most) => classCoverage(kind(most), workload);
  assert.deepEqual([of(0), of(2), of(7)], [[3, 3], [2, 3], [3, 3]]);
  assert.deepEqual(classCoverage(make("full"), workload), [0, 0]);
});

test("features of a wide head are projected as in Python", () => {
  const identity = Float32Array.from({ length: 64 }, (_, at) => Number(at % 9 === 0));
  for (const [seed, columns] of [[0, [-1, 3, 2, -2, 1, 4, 3, -4]], [7, [4, -2, 1, 4, 1, -3, -3, -2]]]) {
    const rows = project(identity, 8, { features: 4, projection_seed: seed });
    const products = Array.from({ length: 8 }, (_, at) => {
      const row = rows.subarray(4 * at, 4 * at + 4);
      const sum = row.findIndex((value) => value !== 0);
      return row[sum] * (sum + 1);
    });
    assert.deepEqual(products, columns, `seed ${seed}`);
  }
  assert.equal(project(identity, 8, { features: 8, projection_seed: 0 }), identity);
});

test("forms of a kind keep its class statistics, and can be made without them", () => {
  const kind = make("entropy-subset", { shares: [0.5, 0.25], statistics: { samples: 10n, numbers: "int8" } });
  const statistics = { ...STATISTICS, samples: 10, numbers: "int8" };
  assert.deepEqual(kind.variants().map((form) => form.statistics), [statistics, statistics]);
  assert.equal(withClassStatistics(kind, null).statistics, null);
  assert.equal(make("full").statistics, null);
  assert.deepEqual(make("full", { statistics: null }).settings, make("full").settings);
});

test("class means consist of class statistics, and keep them", () => {
  const kind = make("class-means", { statistics: STATISTICS });
  assert.deepEqual(statisticsOf(kind), { ...STATISTICS, numbers: "int8" });
  assert.equal(withoutClassStatistics(kind), kind);
  assert.equal(withoutClassStatistics(make("full", { statistics: STATISTICS })).statistics, null);
  const manifest = { labels: ["a", "b"], head: { features: 3 } };
  const names = (specs) => specs.map((spec) => spec.name);
  assert.deepEqual(names(expected(kind, manifest)), [ROWS, MOMENTS, SPREAD]);
  assert.deepEqual(names(expected(withoutMoments(kind), manifest)), [ROWS]);
  assert.equal(withoutMoments(withoutMoments(kind)), null);
  const holding = make("class-means", { statistics: { hold_out: 0.1 } });
  assert.deepEqual(names(expected(withoutMoments(holding), manifest)), [ROWS, RIGHT]);
  const scalars = expected(make("zeroth-order", { statistics: STATISTICS }), manifest);
  assert.deepEqual(names(scalars).slice(0, 2), ["g", ROWS]);
});
