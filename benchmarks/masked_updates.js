/**
 * Processor time of masking an update in the browser's modules: `node benchmarks/masked_updates.js [VALUES...]`.
 *
 * An update of so many changes of weights, without class statistics, is written as integers, sealed to each helper, and
 * masked. The first time is before the engine has optimised the program; the last is the median of the others.
 */
import { float32 } from "../web/device/flat.js";
import { publicKey } from "../web/device/key_agreement.js";
import { layoutOf } from "../web/device/masking/layout.js";
import { seal } from "../web/device/masking/seeds.js";
import { write } from "../web/device/masking/sums.js";

const [TIMES, HELPERS] = [15, 1];
const PURPOSE = { task: "t", run: "r", round: 1, kind: "full", form: "", device: "d", min_group: 5, noise_milli: 0, clip_milli: 0, exponents: [] };

/** Milliseconds of the process since `from`. */
const since = (from) => process.cpuUsage(from).user / 1e3;
const median = (numbers) => numbers.sort((one, other) => one - other)[numbers.length >> 1];

/** An update of one tensor, and the base that it changes. */
function update(values) {
  const spec = { name: "w", shape: [values], dtype: "float32" };
  const base = Float32Array.from({ length: values }, () => Math.random() - 0.5);
  const now = base.map((weight) => weight + 0.01 * (Math.random() - 0.5));
  const tensors = (data) => new Map([["w", float32([values], data)]]);
  const strategy = { expected: () => [spec], summed: [], statistics: null, weight: () => 10 };
  return { base: tensors(base), weighed: { update: { tensors: tensors(now), trainLoss: 0.5 }, strategy, mostWeight: 20 } };
}

async function timed(values, helpers) {
  const { base, weighed } = update(values);
  const times = { written: [], sealed: [], masked: [] };
  for (let i = 0; i < TIMES; i += 1) {
    let from = process.cpuUsage();
    const layout = layoutOf(weighed.strategy, { labels: [] }, base, { capacity: 64, noise_milli: 0 });
    const { vector } = write(weighed, layout);
    times.written.push(since(from));
    from = process.cpuUsage();
    const { seeds } = await seal(crypto.getRandomValues(new Uint8Array(32)), helpers, PURPOSE);
    times.sealed.push(since(from));
    from = process.cpuUsage();
    vector.addMasks(seeds);
    times.masked.push(since(from));
  }
  return times;
}

const helpers = await Promise.all(Array.from({ length: HELPERS }, (_, i) => publicKey(new Uint8Array(32).fill(i + 1))));
for (const values of process.argv.length > 2 ? process.argv.slice(2).map(Number) : [1e3, 1e6]) {
  for (const [what, [first, ...others]] of Object.entries(await timed(values, helpers))) {
    console.log(`${values} values ${what}: ${first.toFixed(2)} ms first, then ${median(others).toFixed(2)}`);
  }
}
