/**
 * What every kind of update is on a device (strategies/kind.py): its settings, its forms, what it costs, and
 * what it makes of the local samples.
 *
 * Prepared inputs x (n, *shape) and labels y (n,).
 * @typedef {{x: Float32Array | Int32Array, y: Int32Array, shape?: number[]}} LocalData
 *
 * One device's work in one round. `seed` is the round's, shared by all; times are in seconds. `aside` is what
 * the aggregator sent beside the base. `clock` stands still while the work does; `lost` is how long it has,
 * of what there was until the deadline. `round` and `rare` are the offer's.
 * @typedef {{seed: bigint, device: string, clock: () => number, deadline: number, progress?: (done: number)
 *   => void | Promise<void>, aside?: import("../flat.js").Tensors, lost?: () => number, round?: number,
 *   rare?: number[]}} Run
 *
 * What a device sends back. `trainLoss` is the mean over what it trained on; NaN where nothing was.
 * @typedef {{kind: string, form: string, tensors: import("../flat.js").Tensors, numExamples: number,
 *   trainLoss: number}} Contribution
 *
 * @typedef {import("../cost.js").Workload} Workload
 * @typedef {import("../engine.js").DeviceModel} DeviceModel
 */

import { breathe } from "../cooperative.js";
import { predict } from "../cost.js";
import { OutOfTime } from "../errors.js";
import { rngOf } from "../randomness.js";
import { fixed, percent } from "../rounding.js";

/**
 * Report `done`, the share of the work that is finished (0 to 1), that began at clock time `began`.
 *
 * Raises OutOfTime when the deadline has passed, or as soon as the rest is seen to miss it: a first tenth,
 * which may have been slow to start, must miss it by three times. Its `wholeS` is how long all that was
 * planned would have taken, of which the work is the share `of`.
 * @param {Run} run
 * @param {{began: number, done: number, of?: number}} at
 */
export async function pace(run, { began, done, of = 1 }) {
  await run.progress?.(done);
  await breathe();
  const elapsed = run.clock() - began;
  const projected = elapsed / done / (done >= 0.1 ? 1 : 3);
  const whole = Math.max(elapsed, projected);
  const over = began + whole + (run.lost?.() ?? 0) - run.deadline;
  if (done >= 1 || over <= 0) return;
  const text = `${percent(done)} done, would end ${fixed(over, 1)} s after the deadline`;
  throw Object.assign(new OutOfTime(text), { wholeS: whole / of });
}

/** The samples at these indices. @param {LocalData} data @param {Int32Array} indices @returns {LocalData} */
export function gathered({ x, y }, indices) {
  const size = x.length / y.length;
  const Values = /** @type {any} */ (x.constructor);
  const rows = new Values(indices.length * size);
  indices.forEach((from, to) => rows.set(x.subarray(from * size, (from + 1) * size), to * size));
  return { x: rows, y: Int32Array.from(indices, (from) => y[from]) };
}

/**
 * So many of the samples, drawn evenly by the run's randomness; all where there are no more.
 * @param {LocalData} data @param {number} most @param {Run} run
 */
export async function drawn(data, most, run) {
  const samples = data.y.length;
  return most < samples ? gathered(data, (await rngOf(run)).permutation(samples).subarray(0, most)) : data;
}

/** From 0 to below `count`. @param {number} count */
export const everyOne = (count) => Int32Array.from({ length: count }, (_, i) => i);

/** What most kinds do: one form, sensible for any data, no codec. */
export class Usual {
  /** @param {any} settings all of them, as they stand in an offer */
  constructor(settings) {
    this.settings = Object.freeze(settings);
  }

  /** By which an offer names it. @returns {string} */
  get name() {
    return /** @type {any} */ (this.constructor).kind;
  }

  /** Which of its forms this is, in a word; empty for a kind that has one. @returns {string} */
  get form() {
    return "";
  }

  /** The word of the codec that its tensors are sent by. @returns {string} */
  get codec() {
    return this.settings.codec ?? "";
  }

  /** The class statistics that go with its updates; null: there are none. */
  get statistics() {
    return this.settings.statistics ?? null;
  }

  /** Whether it back-propagates through the network: second moments of features go with its updates. */
  get trainsExtractor() {
    return false;
  }

  /** Scalars along directions that are sent in a round; 0 for a kind that sends something else. @returns {number} */
  get scalars() {
    return 0;
  }

  /** The member of the task's family that it trains; empty for the main model. */
  get member() {
    return "";
  }

  /** The same with these settings in place. @param {any} changes @returns {any} */
  with(changes) {
    return new /** @type {any} */ (this.constructor)({ ...this.settings, ...changes });
  }

  /** The forms a device may choose from, the richest first. @returns {any[]} */
  variants() {
    return [this];
  }

  /**
   * What it is worth when the clock stops it after this share of its work; null where nothing can be sent.
   */
  stopped(/** @type {number} */ _share) {
    return null;
  }

  /**
   * Why this kind makes no sense for the device's data; empty when it does.
   * @param {Workload} workload
   * @returns {string}
   */
  unfit(workload) {
    return workload.samples ? "" : "there is no local data";
  }

  /** @param {Workload} workload @returns {import("../cost.js").Work} */
  work(workload) {
    throw new TypeError(`${this.name} does not say what it takes on ${workload.samples} samples`);
  }

  /**
   * Predicted, before anything runs.
   * @param {Workload} workload
   * @param {import("../cost.js").Profile} profile
   */
  cost(workload, profile) {
    return predict(profile, this.work(workload), this.name);
  }
}
