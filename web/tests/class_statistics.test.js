import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex } from "../device/bytes.js";
import { MOMENTS, RIGHT, ROWS, SPREAD, asking, chosen, classes } from "../device/class_statistics.js";
import { encode, expected, of, plain, poorer, wished } from "../device/class_statistics.js";
import { toHalf } from "../device/half.js";
import { parted } from "../device/held_out.js";
import { projected } from "../device/projection.js";
import { make } from "../device/kinds/registry.js";
import { write } from "../device/safetensors.js";
import { vectors } from "./vectors.js";

const known = vectors("class_statistics");
const COUNTS = { smallest_count: 2, samples: 40, most_classes: 0, hold_out: 0 };
const STATISTICS = { numbers: "float16", ...COUNTS, moments: true, features: 512, projection_seed: 0 };

test("numbers of 64 bits become those of 16 bits that numpy makes of them", () => {
  const numbers = new Float64Array(fromHex(known.halves.numbers).buffer);
  const bits = new Uint16Array(fromHex(known.halves.bits).buffer);
  assert.ok(numbers.length > 200);
  numbers.forEach((number, at) => assert.equal(toHalf(number), bits[at], `${number}`));
});

for (const [at, one] of known.encoded.entries()) {
  test(`class statistics of these features are Python's, byte for byte (${at})`, () => {
    const x = new Float32Array(fromHex(one.features).buffer);
    const found = of({ x, y: Int32Array.from(one.y) }, one.width, one.labels, one.smallest);
    const sent = encode(found, one);
    assert.equal(hex(write(sent)), one.sent);
  });
}

test("held-out samples are Python's", () => {
  for (const { samples, share, device, rows } of known.held_out) {
    const y = Int32Array.from({ length: samples }, (_, i) => i);
    const [held, rest] = parted({ x: new Float32Array(2 * samples), y }, share, device);
    assert.deepEqual([...held.y], rows, `${samples} samples of ${device}, ${share}`);
    assert.deepEqual([...held.y, ...rest.y].sort((a, b) => a - b), [...y]);
  }
});

test("the classes that are sent are those that Python chooses", () => {
  assert.ok(known.chosen.length > 100);
  for (const { present, most, rare, round, chosen: expected } of known.chosen) {
    assert.deepEqual(chosen(present, most, { rare, round }), expected, `${most} of ${present}, ${rare}, ${round}`);
  }
});

test("of how many classes statistics are sent is told", () => {
  const workload = { classCounts: [5, 1, 2, 0, 9] };
  const of = (most) => classes(make("class-means", { statistics: { ...STATISTICS, most_classes: most } }), workload);
  assert.deepEqual([of(0), of(2), of(7)], [[3, 3], [2, 3], [3, 3]]);
  assert.deepEqual(classes(make("full"), workload), [0, 0]);
});

test("features of a wide head are projected as Python's", () => {
  const identity = Float32Array.from({ length: 64 }, (_, at) => Number(at % 9 === 0));
  for (const [seed, columns] of [[0, [-1, 3, 2, -2, 1, 4, 3, -4]], [7, [4, -2, 1, 4, 1, -3, -3, -2]]]) {
    const rows = projected(identity, 8, { features: 4, projection_seed: seed });
    const found = Array.from({ length: 8 }, (_, at) => {
      const row = rows.subarray(4 * at, 4 * at + 4);
      const sum = row.findIndex((value) => value !== 0);
      return row[sum] * (sum + 1);
    });
    assert.deepEqual(found, columns, `seed ${seed}`);
  }
  assert.equal(projected(identity, 8, { features: 8, projection_seed: 0 }), identity);
});

test("forms of a kind keep its statistics, and can be asked without", () => {
  const kind = make("entropy-subset", { shares: [0.5, 0.25], statistics: { samples: 10n, numbers: "int8" } });
  const statistics = { ...STATISTICS, samples: 10, numbers: "int8" };
  assert.deepEqual(kind.variants().map((form) => form.statistics), [statistics, statistics]);
  assert.equal(asking(kind, null).statistics, null);
  assert.equal(make("full").statistics, null);
  assert.deepEqual(make("full", { statistics: null }).settings, make("full").settings);
});

test("class means are the statistics themselves, and keep them", () => {
  const kind = make("class-means", { statistics: STATISTICS });
  assert.deepEqual(wished(kind), { ...STATISTICS, numbers: "int8" });
  assert.equal(plain(kind), kind);
  assert.equal(plain(make("full", { statistics: STATISTICS })).statistics, null);
  const manifest = { labels: ["a", "b"], head: { features: 3 } };
  const names = (specs) => specs.map((spec) => spec.name);
  assert.deepEqual(names(expected(kind, manifest)), [ROWS, MOMENTS, SPREAD]);
  assert.deepEqual(names(expected(poorer(kind), manifest)), [ROWS]);
  assert.equal(poorer(poorer(kind)), null);
  const holding = make("class-means", { statistics: { hold_out: 0.1 } });
  assert.deepEqual(names(expected(poorer(holding), manifest)), [ROWS, RIGHT]);
  const scalars = expected(make("zeroth-order", { statistics: STATISTICS }), manifest);
  assert.deepEqual(names(scalars).slice(0, 2), ["g", ROWS]);
});
