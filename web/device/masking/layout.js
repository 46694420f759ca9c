/**
 * Writes updates as integers whose sums can be read again: fixed point (strategies/masking/layout.py).
 *
 * One tensor of the vector's values; `base`: the base's values, of which the change is written, or null.
 * @typedef {{name: string, shape: number[], bound: number, exponent: number, base: any}} TensorPart
 *
 * Numbers of the vector's sums, each at most 2^boundBits.
 * @typedef {{name: string, shape: number[], boundBits: number, exponent: number}} SumPart
 *
 * The places and the fixed point of all numbers of an update of one kind and form. `values` and `numbers`: how many
 * values and sums its vector has; the values end with CHECKS. `statistics`: the settings of class statistics, or null.
 * `exponents`: the number of values of each exponent, in order; neighbours that are equal are one.
 * @typedef {{tensors: TensorPart[], sums: SumPart[], statistics: any, values: number, numbers: number,
 *   exponents: [number, number][]}} SumLayout
 */
import { statisticsOf } from "../class_statistics.js";
import { MaskError } from "../errors.js";
import { sizeOf } from "../flat.js";
import { projectedWidth } from "../projection.js";

/** Values of 1 at the end of each device's vector: their sums are the number of devices. */
export const CHECKS = 4;
/** The least bound on a change of a weight; larger where the base has larger weights. */
const LEAST_BOUND = 1;
/** A change of a weight may be so many times the largest weight of the base's tensor. */
const TIMES_BASE = 4;
/** The bound on numbers that are no change of the base, such as zeroth-order scalars. */
const OTHER_BOUND = 1024;
/** The largest Euclidean norm of a class mean (class_sums.py), and the largest mean loss (device_half.py). */
const FEATURE_BOUND = 1e4;
const MOST_LOSS = 1e6;
/** Counts of held-out samples (held_out.js). */
const RIGHT_COUNTS = 3;

export const [LOSS, LOSS_KNOWN] = ["loss", "loss-known"];
export const [SUMS, COUNTS, RIGHT] = ["statistics/sums", "statistics/counts", "statistics/right"];
export const [MOMENT_SUMS, MOMENT_COUNTS, MOMENTS] = ["moments/sums", "moments/counts", "moments/upper"];

/** The smallest k with 2^k >= bound; 0 for a bound that is not finite. @param {number} bound more than 0 */
export function bits(bound) {
  if (!Number.isFinite(bound)) return 0; // of a base whose changes are refused
  let k = Math.round(Math.log2(bound)); // up to rounding, and off by less than 1
  while (2 ** k < bound) k += 1;
  while (2 ** (k - 1) >= bound) k -= 1;
  return k;
}

/**
 * The layout of updates of this form, made from `base`. `strategy` has the class statistics that the offer asks for.
 * With central noise there are no sums, as nothing of them would be hidden. Throws MaskError for a kind that needs them
 * then. @param {any} strategy @param {import("../manifest.js").Manifest} manifest
 * @param {import("../flat.js").Tensors} base @param {{capacity: number, noise_milli: number}} masks
 * @returns {SumLayout}
 */
export function layoutOf(strategy, manifest, base, { capacity, noise_milli: noise }) {
  const [spare, statistics] = [bits(capacity), statisticsOf(strategy)];
  /** @type {{name: string, shape: number[]}[]} */
  const specs = strategy.expected(manifest);
  const added = specs.filter(({ name }) => strategy.summed.includes(name));
  if (noise && (added.length || statistics)) {
    const what = added.map(({ name }) => name).join(", ") || "class statistics";
    throw new MaskError(`${strategy.name} sends ${what}, to which central noise is not added`);
  }
  const tensors = specs
    .filter((spec) => !added.includes(spec))
    .map((spec) => tensorPart(spec, base.get(spec.name), 30 - spare));
  const bounded = [
    [LOSS, [1], MOST_LOSS],
    [LOSS_KNOWN, [1], 1],
    ...added.map(({ name, shape }) => [name, shape, FEATURE_BOUND]),
    ...statisticsParts(statistics, manifest),
  ];
  const sums = (noise ? [] : bounded).map(([name, shape, bound]) => {
    return { name, shape, boundBits: bits(bound), exponent: 62 - spare - bits(bound) };
  });
  const count = (/** @type {any[]} */ parts) => parts.reduce((sum, { shape }) => sum + sizeOf(shape), 0);
  const lengths = { values: count(tensors) + CHECKS, numbers: count(sums) };
  return { tensors, sums, statistics, ...lengths, exponents: exponentsOf(tensors) };
}

/** @param {TensorPart[]} tensors @returns {[number, number][]} */
function exponentsOf(tensors) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const { shape, exponent } of tensors) {
    const last = runs.at(-1);
    if (last?.[1] === exponent) last[0] += sizeOf(shape);
    else runs.push([sizeOf(shape), exponent]);
  }
  return runs;
}

/**
 * @param {{name: string, shape: number[]}} spec @param {import("../flat.js").Tensor | undefined} start
 * @param {number} room bits of a number @returns {TensorPart}
 */
function tensorPart({ name, shape }, start, room) {
  if (start?.shape.join() !== shape.join()) {
    return { name, shape, bound: OTHER_BOUND, exponent: room - bits(OTHER_BOUND), base: null };
  }
  let largest = 0;
  const { data } = start;
  for (let i = 0; i < data.length; i += 1) largest = Math.max(largest, Math.abs(data[i]));
  const boundBits = bits(Math.max(LEAST_BOUND, TIMES_BASE * largest));
  return { name, shape, bound: 2 ** boundBits, exponent: room - boundBits, base: data };
}

/** Name, shape and bound of what class statistics consist of. @param {any} asked @returns {any[]} */
function statisticsParts(statistics, /** @type {import("../manifest.js").Manifest} */ { labels, head }) {
  if (!statistics) return [];
  const [classes, width] = [labels.length, projectedWidth(head.features, statistics)];
  const byClass = (/** @type {string} */ sums, /** @type {string} */ counts) => [
    [sums, [classes, width], FEATURE_BOUND],
    [counts, [classes], 1],
  ];
  const parts = byClass(SUMS, COUNTS);
  if (statistics.hold_out) parts.push([RIGHT, [RIGHT_COUNTS], 1]);
  if (!statistics.moments) return parts;
  return [...parts, ...byClass(MOMENT_SUMS, MOMENT_COUNTS), [MOMENTS, [(width * (width + 1)) / 2], FEATURE_BOUND ** 2]];
}
