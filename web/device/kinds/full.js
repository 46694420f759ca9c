/** Full updates: FedAvg (McMahan et al. 2017, algorithm 1) and what builds on it (strategies/full.py). */

import { truth, whole } from "../records.js";
import { counts } from "./settings.js";
import { FIELDS, TensorUpdate } from "./tensor_update.js";

/**
 * Every parameter, trained for `epochs` local epochs. With `reduced_epochs` a device that cannot afford `epochs` trains
 * that many; with `graded` it trains half of `epochs`, a quarter, .., at least `reduced_epochs` or one. A device that
 * began all epochs and sees by its clock that they do not fit ends after the last whole epoch that does, if it has
 * done `least_epochs` (0: the fewest).
 */
export class Full extends TensorUpdate {
  static kind = "full";
  static fields = {
    ...FIELDS,
    reduced_epochs: [whole(), 0],
    graded: [truth, false],
    least_epochs: [whole(), 0],
  };

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    super(settings);
    const given = ["reduced_epochs", "least_epochs"].filter((name) => settings[name]);
    counts(settings, given, settings.epochs);
  }

  get form() {
    const { epochs, reduced_epochs: reduced } = this.settings;
    return reduced === epochs ? `epochs=${epochs}` : "";
  }

  /** The epochs after which training may end early; 0 if it may not. */
  get least() {
    const least = this.settings.least_epochs || this.fewest;
    return least < this.settings.epochs ? least : 0;
  }

  /** The fewest epochs that a device may choose to train; 0 if it must train all. */
  get fewest() {
    return this.settings.reduced_epochs || Number(this.settings.graded);
  }

  variants() {
    const { epochs, graded } = this.settings;
    const { fewest } = this;
    if (fewest === 0 || fewest === epochs) return [this];
    const forms = [this.with({ reduced_epochs: 0, graded: false, least_epochs: this.least })];
    for (let fewer = epochs >> 1; graded && fewer > fewest; fewer >>= 1) forms.push(this.#of(fewer));
    return [...forms, this.#of(fewest)];
  }

  /** The form with the epochs that were whole by then; null if too few. @param {number} share @returns {any} */
  stopped(share) {
    const done = Math.trunc(this.settings.epochs * share + 1e-9);
    return this.least > 0 && this.least <= done ? this.ended(done) : null;
  }

  /** @param {number} epochs @returns {Full} */
  ended(epochs) {
    return epochs >= this.settings.epochs ? this : this.#of(epochs);
  }

  /** @param {number} epochs */
  #of(epochs) {
    return this.with({ epochs, reduced_epochs: epochs, graded: false, least_epochs: 0 });
  }

  /**
   * As for any tensor update, plus a copy of the parameters if training may end early.
   * @param {import("./kind.js").Workload} workload
   * @param {number} samples
   */
  workOn(workload, samples, scored = 0) {
    const work = super.workOn(workload, samples, scored);
    const kept = this.least ? 4 * workload.values("all") : 0;
    return { ...work, peakBytes: work.peakBytes + kept };
  }

  /** @param {any} model @param {import("./kind.js").Run} run @param {Int32Array} indices */
  plan(model, run, indices) {
    return { ...super.plan(model, run, indices), least: this.least };
  }
}
