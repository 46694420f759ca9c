/**
 * The device's half of every kind of update: settings, forms, cost and training (strategies/interface/kind.py and
 * strategies/interface/device_half.py).
 *
 * Local samples: prepared inputs x (n, *shape) and labels y (n,).
 * @typedef {{x: Float32Array | Int32Array, y: Int32Array, shape?: number[]}} LocalData
 *
 * The context of one device's work in one round; times are in seconds. `seed` is the round's, shared by all devices.
 * `aside`: tensors that the aggregator sent beside the base. `clock` stands still while the work is paused; `lost`
 * gives how long the work has been paused, out of the time until `deadline`. `round` and `rare` are the offer's.
 * @typedef {{seed: bigint, device: string, clock: () => number, deadline: number, progress?: (done: number)
 *   => void | Promise<void>, aside?: import("../flat.js").Tensors, lost?: () => number, round?: number,
 *   rare?: number[]}} Run
 *
 * The update that a device sends. `trainLoss` is the mean over the samples trained on; NaN if there was no training.
 * @typedef {{kind: string, form: string, tensors: import("../flat.js").Tensors, numExamples: number,
 *   trainLoss: number}} Update
 *
 * @typedef {import("../cost.js").Workload} Workload
 * @typedef {import("../engine.js").DeviceModel} DeviceModel
 */

import { yieldToTasks } from "../cooperative.js";
import { predict } from "../cost.js";
import { OutOfTime } from "../errors.js";
import { rngOf } from "../randomness.js";
import { fixed, percent } from "../rounding.js";

/**
 * Report the share `done` (0 to 1) of work that began at clock time `began`.
 *
 * Raises OutOfTime when the deadline has passed, or as soon as the rest is projected to miss it. During the first
 * tenth, which may have been slow to start, the projection is divided by three. This work is the share `of` of all
 * that was planned; the error's `wholeS` is for all.
 * @param {Run} run
 * @param {{began: number, done: number, of?: number}} at
 */
export async function pace(run, { began, done, of = 1 }) {
  await run.progress?.(done);
  await yieldToTasks();
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
 * `most` of the samples, drawn evenly by the run's randomness; all if there are no more.
 * @param {LocalData} data @param {number} most @param {Run} run
 */
export async function drawn(data, most, run) {
  const samples = data.y.length;
  return most < samples ? gathered(data, (await rngOf(run)).permutation(samples).subarray(0, most)) : data;
}

/** The whole numbers from 0 to below `count`. @param {number} count */
export const everyOne = (count) => Int32Array.from({ length: count }, (_, i) => i);

/** Defaults for kinds: one form, of use for any data, no codec. */
export class StrategyDefaults {
  /** @param {any} settings all of them, as in an offer */
  constructor(settings) {
    this.settings = Object.freeze(settings);
  }

  /** The name of the kind in offers. @returns {string} */
  get name() {
    return /** @type {any} */ (this.constructor).kind;
  }

  /** The name of this form among `variants`; empty for a kind that has only one. @returns {string} */
  get form() {
    return "";
  }

  /** The codec that its tensors are sent by, as `named` in codecs.js takes it; empty for none. @returns {string} */
  get codec() {
    return this.settings.codec ?? "";
  }

  /** The class statistics that are sent beside its updates; null: without. */
  get statistics() {
    return this.settings.statistics ?? null;
  }

  /** Whether the device back-propagates through the network. */
  get trainsExtractor() {
    return false;
  }

  /** How many zeroth-order scalars a contribution has; 0 for a kind that sends something else. @returns {number} */
  get scalars() {
    return 0;
  }

  /** Tensors of an update that add up without a weight. @returns {string[]} */
  get summed() {
    return [];
  }

  /** Why its updates cannot be masked and added up; empty if they can. @returns {string} */
  get unsummable() {
    return "";
  }

  /** The update's weight in the mean, in samples. @param {Update} update */
  weight({ numExamples }) {
    return numExamples;
  }

  /** The member of the task's family that this form trains; empty for the main model. */
  get member() {
    return "";
  }

  /** The same kind with other values of these settings. @param {any} changes @returns {any} */
  with(changes) {
    return new /** @type {any} */ (this.constructor)({ ...this.settings, ...changes });
  }

  /** The forms that a device may choose from, the richest first. @returns {any[]} */
  variants() {
    return [this];
  }

  /**
   * The form that was done if the clock stops training after this share of its work; null if nothing can be sent.
   */
  stopped(/** @type {number} */ _share) {
    return null;
  }

  /**
   * Why this kind is of no use for the device's data; empty if it is.
   * @param {Workload} workload
   * @returns {string}
   */
  unfit(workload) {
    return workload.samples ? "" : "has no local data";
  }

  /** @param {Workload} workload @returns {import("../cost.js").Work} */
  work(workload) {
    throw new TypeError(`${this.name} does not say what it takes on ${workload.samples} samples`);
  }

  /**
   * The predicted cost of an update on a device.
   * @param {Workload} workload
   * @param {import("../cost.js").Profile} profile
   */
  cost(workload, profile) {
    return predict(profile, this.work(workload), this.name);
  }
}
