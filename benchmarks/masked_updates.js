/**
 * Milliseconds of masking an update in the browser's modules: `node benchmarks/masked_updates.js [VALUES...]`, or in
 * Chromium by `masking_device.py --chromium`. In Node they are of processor time.
 *
 * An update of so many changes of weights, without class statistics, is written as integers, sealed to one helper, and
 * masked. The first time is before the engine has optimised the program; the last is the median of the others.
 */
import { float32 } from "../web/device/flat.js";
import { publicKey } from "../web/device/key_agreement.js";
import { layoutOf } from "../web/device/masking/layout.js";
import { seal } from "../web/device/masking/seeds.js";
import { write } from "../web/device/masking/sums.js";

const TIMES = 15;
const PURPOSE = { task: "t", run: "r", round: 1, kind: "full", form: "", device: "d", min_group: 5, noise_milli: 0, clip_milli: 0, exponents: [] };

const inNode = typeof process !== "undefined";
const now = () => (inNode ? process.cpuUsage().user / 1e3 : performance.now());
const median = (numbers) => numbers.sort((left, other) => left - other)[numbers.length >> 1];

/** An update of one tensor, and the base that it changes. */
function update(values) {
  const spec = { name: "w", shape: [values], dtype: "float32" };
  const base = Float32Array.from({ length: values }, () => Math.random() - 0.5);
  const now = base.map((weight) => weight + 0.01 * (Math.random() - 0.5));
  const tensors = (data) => new Map([["w", float32([values], data)]]);
  const strategy = { expected: () => [spec], summed: [], statistics: null, weight: () => 10 };
  return { base: tensors(base), weighed: { update: { tensors: tensors(now), trainLoss: 0.5 }, strategy, mostWeight: 20 } };
}

/** Milliseconds of each part of masking an update of so many values: the first time, and the median of the others. */
export async function timed(values) {
  const helpers = [await publicKey(new Uint8Array(32).fill(1))];
  const { base, weighed } = update(values);
  const times = { written: [], sealed: [], masked: [] };
  for (let i = 0; i < TIMES; i += 1) {
    const began = now();
    const layout = layoutOf(weighed.strategy, { labels: [] }, base, { capacity: 64, noise_milli: 0 });
    const { vector } = write(weighed, layout);
    const written = now();
    const { seeds } = await seal(crypto.getRandomValues(new Uint8Array(32)), helpers, PURPOSE);
    const sealed = now();
    vector.addMasks(seeds);
    times.written.push(written - began);
    times.sealed.push(sealed - written);
    times.masked.push(now() - sealed);
  }
  return Object.entries(times).map(([what, [first, ...others]]) => [what, first, median(others)]);
}

if (inNode) {
  for (const values of process.argv.length > 2 ? process.argv.slice(2).map(Number) : [1e3, 1e6]) {
    for (const [what, first, later] of await timed(values)) {
      console.log(`${values} values ${what}: ${first.toFixed(2)} ms first, then ${later.toFixed(2)}`);
    }
  }
}
