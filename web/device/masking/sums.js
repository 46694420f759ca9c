/** Converts updates to vectors of integers, which are masked and added up (strategies/masking/sums.py). */
import { decode, samplesPerMeasured } from "../class_statistics.js";
import { MaskError } from "../errors.js";
import { shapeText } from "../flat.js";
import { significant, whole } from "../rounding.js";
import { COUNTS, LOSS, LOSS_KNOWN, MOMENTS, MOMENT_COUNTS, MOMENT_SUMS, RIGHT, SUMS } from "./layout.js";
import { MaskedVector } from "./masks.js";

/** @typedef {import("./layout.js").SumLayout} SumLayout */
/**
 * An update to mask: the form of the kind that made it, with the class statistics that the offer asks for, and the
 * weight, in samples, that counts as 1 in the sum; a larger weight counts as this one. `kind`: as it is offered, which
 * says what the update weighs; left out: `strategy` is it.
 * @typedef {{update: import("../kinds/kind.js").Update, strategy: any, mostWeight: number, kind?: any}} Weighed
 */

/** Added to a smaller number and taken off again, it rounds that number: ties go to the even one. */
const ROUNDS = 1.5 * 2 ** 52;

/**
 * The integers of an update, and what was shortened so that it fits; "" for nothing. Throws MaskError for an update
 * with numbers that are not finite, or without a tensor of the layout.
 * @param {Weighed} weighed @param {SumLayout} layout @param {number} [mostNorm] bound on the Euclidean norm of all
 * changes together; 0: none @returns {{vector: MaskedVector, note: string}}
 */
export function write(weighed, layout, mostNorm = 0) {
  const vector = new MaskedVector(layout.values, layout.numbers);
  const share = shareOf(weighed);
  const changes = layout.tensors.map((part) => changeOf(part, weighed.update.tensors.get(part.name)));
  const factor = shortening(changes, mostNorm);
  let at = 0;
  for (const { part, now } of changes) {
    writeChange(vector.values.subarray(at), now, part.base, factor * share * 2 ** part.exponent);
    at += now.length;
  }
  vector.values.fill(1, at);
  writeSums(vector, layout.sums, numbersOf(weighed, share, layout));
  const note = factor < 1 ? `its changes were shortened to ${significant(factor, 3)} of their length` : "";
  return { vector, note };
}

/** The update's weight in parts of `mostWeight`, at most 1. @param {Weighed} weighed */
const shareOf = ({ update, strategy, kind = strategy, mostWeight }) => Math.min(1, kind.weight(update) / mostWeight);

/**
 * A tensor's values, the size of the largest change, and the sum of squares of all.
 * @param {import("./layout.js").TensorPart} part @param {import("../flat.js").Tensor | undefined} tensor
 */
function changeOf(part, tensor) {
  if (tensor?.shape.join() !== part.shape.join()) {
    const shape = tensor ? shapeText(tensor.shape) : "missing";
    throw new MaskError(`${part.name} is ${shape}, expected ${shapeText(part.shape)}`);
  }
  const [now, { base }] = [tensor.data, part];
  let [largest, squares] = [0, 0];
  for (let i = 0; i < now.length; i += 1) {
    const change = base ? now[i] - base[i] : now[i];
    squares += change * change;
    if (Math.abs(change) > largest) largest = Math.abs(change);
  }
  if (!Number.isFinite(squares)) throw notFinite(part);
  return { part, now, largest, squares };
}

/** The factor, at most 1, by which all changes are shortened to keep the bounds. */
function shortening(/** @type {any[]} */ changes, /** @type {number} */ mostNorm) {
  const factors = changes.map(({ part, largest }) => part.bound / Math.max(part.bound, largest));
  const length = Math.sqrt(changes.reduce((sum, { squares }) => sum + squares, 0));
  return Math.min(1, ...factors, mostNorm ? mostNorm / Math.max(mostNorm, length) : 1);
}

/** @param {Uint32Array} into @param {any} now @param {any} base or null @param {number} scale */
function writeChange(into, now, base, scale) {
  for (let i = 0; i < now.length; i += 1) {
    const change = base ? now[i] - base[i] : now[i];
    into[i] = (change * scale + ROUNDS - ROUNDS) | 0;
  }
}

/** The numbers beside the weights. @param {MaskedVector} vector @param {import("./layout.js").SumPart[]} parts */
function writeSums(vector, parts, /** @type {Map<string, ArrayLike<number>>} */ numbers) {
  let at = 0;
  for (const part of parts) {
    const values = numbers.get(part.name);
    if (!values) throw new MaskError(`${part.name} is missing, expected ${shapeText(part.shape)}`);
    const [limit, scale] = [2 ** part.boundBits, 2 ** part.exponent];
    for (let i = 0; i < values.length; i += 1, at += 1) {
      const steps = Math.min(limit, Math.max(-limit, values[i])) * scale;
      if (!Number.isFinite(steps)) throw notFinite(part);
      vector.setSum(at, whole(steps));
    }
  }
}

/**
 * The numbers of the vector's sums by name, in parts of `mostWeight`.
 * @param {Weighed} weighed @param {number} share @param {SumLayout} layout
 */
function numbersOf({ update, strategy, mostWeight }, share, { statistics, sums }) {
  const isKnown = !Number.isNaN(update.trainLoss);
  const parted = (/** @type {ArrayLike<number>} */ numbers, whole = mostWeight) => Float64Array.from(numbers, (value) => value / whole);
  /** @type {Map<string, ArrayLike<number>>} */
  const tensors = new Map([
    [LOSS, [isKnown ? share * update.trainLoss : 0]],
    [LOSS_KNOWN, [isKnown ? share : 0]],
  ]);
  for (const name of strategy.summed) {
    const tensor = update.tensors.get(name);
    if (tensor) tensors.set(name, parted(tensor.data));
  }
  if (!statistics) return tensors;
  const { shape } = /** @type {any} */ (sums.find(({ name }) => name === SUMS));
  const { all, ofMoments, moments, right } = decode(update.tensors, shape);
  const times = samplesPerMeasured(strategy, update.numExamples, total(all.counts));
  const counts = scaled(all.counts, times);
  const whole = Math.max(mostWeight, total(counts), total(ofMoments.counts), ...right); // a device with more samples counts as mostWeight
  tensors.set(SUMS, parted(dense(all, times), whole)).set(COUNTS, parted(counts, whole));
  tensors.set(RIGHT, parted(right, whole)).set(MOMENTS, parted(moments, whole));
  return tensors.set(MOMENT_SUMS, parted(dense(ofMoments, 1), whole)).set(MOMENT_COUNTS, parted(ofMoments.counts, whole));
}

/** Sums by class in one array, (classes, width). */
function dense(/** @type {import("../class_sums.js").ClassSums} */ { width, counts, sums }, /** @type {number} */ times) {
  const rows = new Float64Array(counts.length * width);
  for (const [label, sum] of sums) rows.set(scaled(sum, times), label * width);
  return rows;
}

/** @param {ArrayLike<number>} numbers @param {number} times */
const scaled = (numbers, times) => Float64Array.from(numbers, (value) => times * value);

/** @param {ArrayLike<number>} counts */
const total = (counts) => Array.from(counts).reduce((sum, count) => sum + count, 0);

/** @param {{name: string}} part */
const notFinite = ({ name }) => new MaskError(`${name} has non-finite values`);
