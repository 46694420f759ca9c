/**
 * Class statistics of features, sent beside an update: counts, means, second moments
 * (strategies/statistics/class_statistics.py and kind_statistics.py).
 */

import { quantiseRow, readRows, restoreRow, rowBytes, specOfRows, sumByClass, writeRows } from "./class_sums.js";
import { predict } from "./cost.js";
import * as heldOut from "./held_out.js";
import { ClassMeans } from "./kinds/class_means.js";
import { FewShot } from "./kinds/few_shot.js";
import { drawn } from "./kinds/kind.js";
import { project, projectedWidth } from "./projection.js";
import { forwardWork, passes } from "./workload.js";

/** @typedef {import("./cost.js").Workload} Workload */
/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./kinds/kind.js").LocalData} LocalData */
/** @typedef {import("./class_sums.js").ClassSums} ClassSums */
/**
 * `moments`: the upper triangle of the sum of f f^T, row by row.
 * @typedef {ClassSums & {moments: Float64Array}} Statistics
 */

const PREFIX = "class-statistics/";
/** The tensor with the counts and means. */
export const ROWS = `${PREFIX}rows`;
/** The tensors with the mean of f f^T, and with its largest number. */
export const MOMENTS = `${PREFIX}moments`;
export const SPREAD = `${PREFIX}spread`;
/** The tensor with the counts of held-out samples (held_out.js); it has no row if no head was compared. */
export const RIGHT = `${PREFIX}right`;
/** The least number of samples minus classes for which second moments are sent. */
const LEAST_FREE = 2;
/** Usual bytes of a tensor on the wire beside its values. */
const TENSOR_BYTES = 72;
/** A device with more rare classes than it may send sends its other classes in one of OTHERS rounds. */
const OTHERS = 4;

/**
 * The settings of the class statistics that an update of this form has; null if it has none. An update of class
 * means consists of them. There, and beside scalars, means are sent as int8. @param {any} strategy
 */
export function statisticsOf(strategy) {
  const statistics = strategy.statistics ?? null;
  if (!statistics || !(strategy.scalars > 0 || strategy instanceof ClassMeans)) return statistics;
  const least = Math.max(strategy.settings.smallest_count ?? 0, statistics.smallest_count);
  return { ...statistics, numbers: "int8", smallest_count: least };
}

/** The same kind without second moments in its class statistics; null if it has none. @param {any} strategy */
export function withoutMoments(strategy) {
  const { statistics } = strategy;
  return statistics?.moments ? withClassStatistics(strategy, { ...statistics, moments: false }) : null;
}

/** The same kind with class statistics of at most `most` classes. @param {any} strategy @param {number} most */
export const withMostClasses = (strategy, most) =>
  withClassStatistics(strategy, { ...strategy.statistics, most_classes: most });

/**
 * How many classes an update sends statistics of, and how many it could.
 * @param {any} strategy @param {Workload} workload @returns {[number, number]}
 */
export function classCoverage(strategy, workload) {
  const statistics = statisticsOf(strategy);
  if (!statistics) return [0, 0];
  const present = workload.classCounts.filter((count) => count >= statistics.smallest_count).length;
  return [Math.min(present, statistics.most_classes || present), present];
}

/** The same kind without class statistics; class means consist of them, and keep them. @param {any} strategy */
export const withoutClassStatistics = (strategy) =>
  strategy.statistics && !(strategy instanceof ClassMeans) ? withClassStatistics(strategy, null) : strategy;

/** The same kind with these settings of class statistics. @param {any} strategy @param {any} statistics */
export const withClassStatistics = (strategy, statistics) => strategy.with({ statistics });

/**
 * The predicted cost of an update with its class statistics. They take one more forward pass before training,
 * whose features are kept; few-shot training computes these anyway. Held-out samples take one forward pass.
 * Raises MissingGraph.
 * @param {any} strategy @param {Workload} whole @param {import("./cost.js").Profile} profile
 * @returns {import("./cost.js").Cost}
 */
export function cost(strategy, whole, profile) {
  const statistics = statisticsOf(strategy);
  if (!statistics || !whole.samples) return strategy.cost(whole, profile);
  const workload = heldOut.rest(whole, statistics.hold_out);
  const own = strategy.cost(workload, profile);
  const [samples, wide] = [measured(strategy, workload.samples), workload.featureWidth];
  const width = projectedWidth(wide, statistics);
  const [present] = classCoverage(strategy, workload);
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
  let memoryBytes = 4 * samples * wide;
  if (statistics.hold_out) {
    bytesUp += 12 + TENSOR_BYTES;
    memoryBytes += whole.samples * whole.sampleBytes;
  }
  const more = predict(profile, { passes: run, peakBytes, bytesUp, bytesDown: 0 }, strategy.name);
  return {
    seconds: own.seconds + more.seconds,
    computeS: own.computeS + more.computeS,
    peakMemoryBytes: Math.max(own.peakMemoryBytes + memoryBytes, more.peakMemoryBytes),
    bytesUp: own.bytesUp + more.bytesUp,
    bytesDown: own.bytesDown,
    energyJ: own.energyJ + more.energyJ,
    flops: own.flops + more.flops,
  };
}

/** Of how many of its `samples` a device computes features. @param {any} strategy @param {number} samples */
function measured(strategy, samples) {
  const { statistics } = strategy;
  const isAll = strategy.trainsExtractor || strategy instanceof FewShot;
  return isAll || !statistics.samples ? samples : Math.min(samples, statistics.samples);
}

/**
 * The update together with its class statistics, both without held-out samples. Statistics are of samples drawn
 * evenly. `model` holds the base. Raises as the kind's `train` does.
 * @param {any} strategy @param {import("./engine.js").DeviceModel} model @param {LocalData} all
 * @param {import("./kinds/kind.js").Run} run @returns {Promise<import("./kinds/kind.js").Update>}
 */
export async function train(strategy, model, all, run) {
  const statistics = statisticsOf(strategy);
  if (!statistics) return strategy.train(model, all, run);
  const [holdout, data] = statistics.hold_out ? heldOut.splitHeldOut(all, statistics.hold_out, run.device) : [null, all];
  const right = holdout && (await heldOut.countRight(model, holdout, run.aside));
  const { manifest, weights } = model;
  const here = await drawn(data, measured(strategy, data.y.length), run);
  const features = await model.features(here.x);
  const cached = { manifest, weights, features: async () => features };
  const update = await strategy.train(strategy instanceof FewShot ? cached : model, data, run);
  const width = projectedWidth(manifest.head.features, statistics);
  const x = project(features, manifest.head.features, statistics);
  const counted = ofChosen({ x, y: here.y }, width, statistics, run);
  const sums = measureStatistics(counted, width, manifest.labels.length, statistics.smallest_count);
  const sent = encode({ ...sums, right, isPart: counted.y.length < here.y.length }, statistics);
  return { ...update, tensors: new Map([...update.tensors, ...sent]) };
}

/**
 * The classes among `present` that an update sends statistics of: at most `most`, 0 for all. Rare classes come first,
 * the rarest before others. Other classes take turns by the number of the round, as many as there is room for.
 * @param {number[]} present @param {number} most @param {{round?: number, rare?: number[]}} run
 */
export function chosenClasses(present, most, { round = 0, rare = [] }) {
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
 * The measured samples of those classes that are sent. @param {{x: any, y: Int32Array}} data @param {number} width
 * @param {any} statistics @param {import("./kinds/kind.js").Run} run
 */
function ofChosen({ x, y }, width, { smallest_count: smallest, most_classes: most }, run) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const label of y) counts.set(label, (counts.get(label) ?? 0) + 1);
  const present = [...counts.keys()].filter((label) => (counts.get(label) ?? 0) >= smallest).sort((a, b) => a - b);
  const sent = new Set(chosenClasses(present, most, run));
  if (sent.size === present.length) return { x, y };
  const rows = Array.from(y.keys()).filter((row) => sent.has(y[row]));
  const values = new x.constructor(rows.length * width);
  rows.forEach((row, at) => values.set(x.subarray(row * width, (row + 1) * width), at * width));
  return { x: values, y: Int32Array.from(rows, (row) => y[row]) };
}

/**
 * The statistics of features x (n, width) and labels y (n,), for classes of `smallest` samples or more.
 * @param {{x: any, y: Int32Array}} data @param {number} width @param {number} labels @param {number} smallest
 * @returns {Statistics}
 */
export function measureStatistics({ x, y }, width, labels, smallest) {
  const sums = sumByClass({ x, y }, width, labels, smallest);
  const moments = new Float64Array((width * (width + 1)) / 2);
  y.forEach((label, row) => {
    if (!sums.sums.has(label)) return;
    const f = x.subarray(row * width, (row + 1) * width);
    for (let i = 0, at = 0; i < width; i += 1)
      for (let j = i; j < width; j += 1, at += 1) moments[at] += f[i] * f[j];
  });
  return { ...sums, moments };
}

/**
 * The tensors for the wire, as Python's `encode`; `isPart`: they are not of all classes that the device has.
 * @param {Statistics & {right?: Int32Array | null, isPart?: boolean}} statistics
 * @param {{numbers: string, moments: boolean, hold_out: number}} asked @returns {Tensors}
 */
export function encode({ moments: total, right, isPart = false, ...sums }, statistics) {
  /** @type {Tensors} */
  const sent = new Map([[ROWS, writeRows(sums, statistics.numbers)]]);
  if (statistics.hold_out) sent.set(RIGHT, { dtype: "int32", shape: [right ? 1 : 0, 3], data: right ?? new Int32Array(0) });
  if (!statistics.moments) return sent;
  const samples = sums.counts.reduce((sum, count) => sum + count, 0);
  const rows = Number(!isPart && samples - sums.sums.size >= LEAST_FREE);
  const mean = total.map((value) => value / samples);
  const [upper, spread] = rows ? quantiseRow(mean, "float16") : [new Uint16Array(0), 0];
  sent.set(MOMENTS, { dtype: "float16", shape: [rows, total.length], data: upper });
  return sent.set(SPREAD, { dtype: "float32", shape: [rows], data: new Float32Array(rows).fill(spread) });
}

/**
 * The class statistics among tensors of an update, as `encode` rounded them; zeros if it has none. `ofMoments`: as
 * `all`, of the samples in `moments`. @param {Tensors} sent @param {[number, number]} shape classes and features
 * @returns {{all: ClassSums, ofMoments: ClassSums, moments: Float64Array, right: Float64Array}}
 */
export function decode(sent, [labels, width]) {
  const none = { width, counts: new Int32Array(labels), sums: new Map() };
  const [rows, upper, right] = [ROWS, MOMENTS, RIGHT].map((name) => sent.get(name));
  const all = rows ? readRows(rows, labels, width) : none;
  const counts = Float64Array.from({ length: 3 }, (_, at) => right?.data[at] ?? 0);
  if (!upper?.data.length) return { all, ofMoments: none, moments: new Float64Array((width * (width + 1)) / 2), right: counts };
  const samples = all.counts.reduce((sum, count) => sum + count, 0);
  const moments = restoreRow(upper.data, sent.get(SPREAD)?.data[0]).map((value) => value * samples);
  return { all, ofMoments: all, moments, right: counts };
}

/**
 * How many samples one measured sample counts for, on a device with `numExamples` samples, of which `counted` are in
 * the statistics: a kind that trains no extractor measures only some. @param {any} strategy
 * @param {number} numExamples @param {number} counted
 */
export function samplesPerMeasured(strategy, numExamples, counted) {
  if (!statisticsOf(strategy) || strategy.trainsExtractor) return 1;
  return Math.max(1, numExamples / Math.max(1, measured(strategy, numExamples), counted));
}

/**
 * The tensors of an update of this form, including its class statistics if it has any.
 * @param {any} strategy @param {import("./manifest.js").Manifest} manifest
 */
export function expected(strategy, manifest) {
  return [...strategy.expected(manifest), ...specs(strategy, manifest)];
}

/**
 * The tensors of the class statistics of an update of this form.
 * @param {any} strategy @param {import("./manifest.js").Manifest} manifest
 * @returns {import("./flat.js").TensorSpec[]}
 */
function specs(strategy, manifest) {
  const statistics = statisticsOf(strategy);
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
