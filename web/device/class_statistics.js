/**
 * Class statistics of features, sent beside an update: counts, means, and second moments
 * (strategies/statistics/class_statistics.py).
 */

import { byClass, rowBytes, short, specOfRows, writeRows } from "./class_sums.js";
import { predict } from "./cost.js";
import * as heldOut from "./held_out.js";
import { ClassMeans } from "./kinds/class_means.js";
import { FewShot } from "./kinds/few_shot.js";
import { drawn } from "./kinds/kind.js";
import { projected, projectedWidth } from "./projection.js";
import { forwardWork, passes } from "./workload.js";

/** @typedef {import("./cost.js").Workload} Workload */
/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./kinds/kind.js").LocalData} LocalData */
/** @typedef {import("./class_sums.js").ClassSums} ClassSums */
/**
 * With the upper triangle of the sum of f f^T, row by row.
 * @typedef {ClassSums & {moments: Float64Array}} Statistics
 */

const PREFIX = "class-statistics/";
/** Counts and means. */
export const ROWS = `${PREFIX}rows`;
/** The mean of f f^T, and its largest number. */
export const MOMENTS = `${PREFIX}moments`;
export const SPREAD = `${PREFIX}spread`;
/** Held-out samples, and how many of them each head classifies right (held_out.js); no row where none was compared. */
export const RIGHT = `${PREFIX}right`;
/** Second moments are sent of at least so many more samples than classes. */
const LEAST_FREE = 2;
/** Of a tensor on the wire beside its values, usually. */
const TENSOR_BYTES = 72;
/** Where a device has more rare classes than it sends, its others are sent in one of so many rounds. */
const OTHERS = 4;

/**
 * What class statistics are in an update of this form, if any. Class means are nothing else. In these, and beside
 * scalars alone, means are sent as int8. @param {any} strategy
 */
export function wished(strategy) {
  const statistics = strategy.statistics ?? null;
  if (!statistics || !(strategy.scalars > 0 || strategy instanceof ClassMeans)) return statistics;
  const least = Math.max(strategy.settings.smallest_count ?? 0, statistics.smallest_count);
  return { ...statistics, numbers: "int8", smallest_count: least };
}

/** The same kind, with less in its class statistics: without second moments. Null: there is no less. @param {any} strategy */
export function poorer(strategy) {
  const { statistics } = strategy;
  return statistics?.moments ? asking(strategy, { ...statistics, moments: false }) : null;
}

/** The same kind, with class statistics of so many classes at most. @param {any} strategy @param {number} most */
export const ofClasses = (strategy, most) => asking(strategy, { ...strategy.statistics, most_classes: most });

/**
 * Of how many classes an update sends statistics, and of how many it could.
 * @param {any} strategy @param {Workload} workload @returns {[number, number]}
 */
export function classes(strategy, workload) {
  const statistics = wished(strategy);
  if (!statistics) return [0, 0];
  const present = workload.classCounts.filter((count) => count >= statistics.smallest_count).length;
  return [Math.min(present, statistics.most_classes || present), present];
}

/** The same kind without class statistics; class means are nothing else, and keep them. @param {any} strategy */
export const plain = (strategy) =>
  strategy.statistics && !(strategy instanceof ClassMeans) ? asking(strategy, null) : strategy;

/** The same kind, with these class statistics beside its updates. @param {any} strategy @param {any} statistics */
export const asking = (strategy, statistics) => strategy.with({ statistics });

/**
 * Of an update with its class statistics: one more forward pass, before anything else, whose features are
 * kept; few-shot training has these anyhow. Held-out samples are passed forward once. Raises MissingGraph.
 * @param {any} strategy @param {Workload} whole @param {import("./cost.js").Profile} profile
 * @returns {import("./cost.js").Cost}
 */
export function cost(strategy, whole, profile) {
  const statistics = wished(strategy);
  if (!statistics || !whole.samples) return strategy.cost(whole, profile);
  const workload = heldOut.rest(whole, statistics.hold_out);
  const own = strategy.cost(workload, profile);
  const [samples, wide] = [measured(strategy, workload.samples), workload.featureWidth];
  const width = projectedWidth(wide, statistics);
  const [present] = classes(strategy, workload);
  const work = forwardWork(workload.with({ classCounts: [samples] }), samples, 0);
  const forward = whole.samples - workload.samples + (strategy instanceof FewShot ? 0 : samples);
  const run = forward ? passes(workload, { forward }) : [];
  let bytesUp = present * rowBytes(width, statistics.numbers) + TENSOR_BYTES;
  let { peakBytes } = work;
  if (statistics.moments) {
    bytesUp += width * (width + 1) + 4 + 2 * TENSOR_BYTES;
    run.push({ graph: "moments", samples, flops: 2 * width ** 2 });
    peakBytes += 16 * width ** 2;
  }
  let kept = 4 * samples * wide;
  if (statistics.hold_out) {
    bytesUp += 12 + TENSOR_BYTES;
    kept += whole.samples * whole.sampleBytes;
  }
  const more = predict(profile, { passes: run, peakBytes, bytesUp, bytesDown: 0 }, strategy.name);
  return {
    seconds: own.seconds + more.seconds,
    computeS: own.computeS + more.computeS,
    peakMemoryBytes: Math.max(own.peakMemoryBytes + kept, more.peakMemoryBytes),
    bytesUp: own.bytesUp + more.bytesUp,
    bytesDown: own.bytesDown,
    energyJ: own.energyJ + more.energyJ,
    flops: own.flops + more.flops,
  };
}

/** How many samples' features a device of so many computes. @param {any} strategy @param {number} samples */
function measured(strategy, samples) {
  const { statistics } = strategy;
  const isAll = strategy.trainsExtractor || strategy instanceof FewShot;
  return isAll || !statistics.samples ? samples : Math.min(samples, statistics.samples);
}

/**
 * The update, and beside it the class statistics of as many samples, drawn evenly; both of what is not held out.
 * `model` holds the base. Raises as the kind's `train` does.
 * @param {any} strategy @param {import("./engine.js").DeviceModel} model @param {LocalData} all
 * @param {import("./kinds/kind.js").Run} run @returns {Promise<import("./kinds/kind.js").Contribution>}
 */
export async function train(strategy, model, all, run) {
  const statistics = wished(strategy);
  if (!statistics) return strategy.train(model, all, run);
  const [held, data] = statistics.hold_out ? heldOut.parted(all, statistics.hold_out, run.device) : [null, all];
  const right = held && (await heldOut.counted(model, held, run.aside));
  const { manifest, weights } = model;
  const here = await drawn(data, measured(strategy, data.y.length), run);
  const features = await model.features(here.x);
  const known = { manifest, weights, features: async () => features };
  const made = await strategy.train(strategy instanceof FewShot ? known : model, data, run);
  const width = projectedWidth(manifest.head.features, statistics);
  const x = projected(features, manifest.head.features, statistics);
  const counted = ofChosen({ x, y: here.y }, width, statistics, run);
  const found = of(counted, width, manifest.labels.length, statistics.smallest_count);
  const sent = encode({ ...found, right, isPart: counted.y.length < here.y.length }, statistics);
  return { ...made, tensors: new Map([...made.tensors, ...sent]) };
}

/**
 * The classes, of those present, that an update sends statistics of, as Python's `chosen`; `most`: how many, 0 for
 * all. @param {number[]} present @param {number} most @param {{round?: number, rare?: number[]}} run
 */
export function chosen(present, most, { round = 0, rare = [] }) {
  if (!most || present.length <= most) return present;
  let first = rare.filter((label) => present.includes(label)).slice(0, most);
  const others = present.filter((label) => !first.includes(label));
  let [room, turn] = [most - first.length, round];
  if (!room && turn % OTHERS === 0) {
    [room, turn] = [Math.min(most, others.length), turn / OTHERS];
    first = first.slice(0, most - room);
  }
  const start = (room * turn) % others.length;
  return [...first, ...[...others, ...others].slice(start, start + room)];
}

/**
 * The measured samples of the classes that are sent. @param {{x: any, y: Int32Array}} data @param {number} width
 * @param {any} statistics @param {import("./kinds/kind.js").Run} run
 */
function ofChosen({ x, y }, width, { smallest_count: smallest, most_classes: most }, run) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const label of y) counts.set(label, (counts.get(label) ?? 0) + 1);
  const present = [...counts.keys()].filter((label) => (counts.get(label) ?? 0) >= smallest).sort((a, b) => a - b);
  const sent = new Set(chosen(present, most, run));
  if (sent.size === present.length) return { x, y };
  const rows = Array.from(y.keys()).filter((row) => sent.has(y[row]));
  const taken = new x.constructor(rows.length * width);
  rows.forEach((row, at) => taken.set(x.subarray(row * width, (row + 1) * width), at * width));
  return { x: taken, y: Int32Array.from(rows, (row) => y[row]) };
}

/**
 * Of features x (n, width) and their labels y, without classes of fewer samples than `smallest`.
 * @param {{x: any, y: Int32Array}} data @param {number} width @param {number} labels @param {number} smallest
 * @returns {Statistics}
 */
export function of({ x, y }, width, labels, smallest) {
  const found = byClass({ x, y }, width, labels, smallest);
  const moments = new Float64Array((width * (width + 1)) / 2);
  y.forEach((label, row) => {
    if (!found.sums.has(label)) return;
    const f = x.subarray(row * width, (row + 1) * width);
    for (let i = 0, at = 0; i < width; i += 1)
      for (let j = i; j < width; j += 1, at += 1) moments[at] += f[i] * f[j];
  });
  return { ...found, moments };
}

/**
 * Tensors for the wire, as Python's `encode`; `isPart`: not of all classes that the device has.
 * @param {Statistics & {right?: Int32Array | null, isPart?: boolean}} statistics
 * @param {{numbers: string, moments: boolean, hold_out: number}} asked @returns {Tensors}
 */
export function encode({ moments: total, right, isPart = false, ...found }, asked) {
  /** @type {Tensors} */
  const sent = new Map([[ROWS, writeRows(found, asked.numbers)]]);
  if (asked.hold_out) sent.set(RIGHT, { dtype: "int32", shape: [right ? 1 : 0, 3], data: right ?? new Int32Array(0) });
  if (!asked.moments) return sent;
  const samples = found.counts.reduce((sum, count) => sum + count, 0);
  const rows = Number(!isPart && samples - found.sums.size >= LEAST_FREE);
  const [upper, spread] = rows ? short(total.map((value) => value / samples), "float16") : [new Uint16Array(0), 0];
  sent.set(MOMENTS, { dtype: "float16", shape: [rows, total.length], data: upper });
  return sent.set(SPREAD, { dtype: "float32", shape: [rows], data: new Float32Array(rows).fill(spread) });
}

/** What an update of this form consists of. @param {any} strategy @param {import("./manifest.js").Manifest} manifest */
export function expected(strategy, manifest) {
  return [...strategy.expected(manifest), ...specs(strategy, manifest)];
}

/**
 * Of the class statistics beside an update of this form.
 * @param {any} strategy @param {import("./manifest.js").Manifest} manifest
 * @returns {import("./flat.js").TensorSpec[]}
 */
function specs(strategy, manifest) {
  const statistics = wished(strategy);
  if (!statistics) return [];
  const [labels, width] = [manifest.labels.length, projectedWidth(manifest.head.features, statistics)];
  const parts = [specOfRows(ROWS, [labels, width], statistics.numbers)];
  if (statistics.hold_out) parts.push({ name: RIGHT, shape: [1, 3], dtype: "int32", variable: true });
  if (!statistics.moments) return parts;
  return [
    ...parts,
    { name: MOMENTS, shape: [1, (width * (width + 1)) / 2], dtype: "float16", variable: true },
    { name: SPREAD, shape: [1], dtype: "float32", variable: true },
  ];
}
