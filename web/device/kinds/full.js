/** Full updates: FedAvg (McMahan et al. 2017, algorithm 1) and what builds on it (strategies/full.py). */

import { truth, whole } from "../records.js";
import { counts } from "./settings.js";
import { FIELDS, TensorUpdate } from "./tensor_update.js";

/**
 * Every parameter, trained for `epochs` local epochs. `reduced_epochs` lets a device that cannot afford them
 * train that many, `graded` as many as it can from there up. One whose clock says that it cannot end all ends
 * after the last whole epoch, if `least_epochs` or `reduced_epochs` are done.
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
    if (settings.graded && !settings.reduced_epochs) {
      throw new RangeError("graded is true, but reduced_epochs is 0: expected the fewest epochs to train");
    }
  }

  get form() {
    const { epochs, reduced_epochs: reduced } = this.settings;
    return reduced === epochs ? `epochs=${epochs}` : "";
  }

  /** The epochs after which it may end early; 0 where it may not. */
  get least() {
    const { epochs, reduced_epochs: reduced, least_epochs: fewest } = this.settings;
    const least = fewest || reduced;
    return least < epochs ? least : 0;
  }

  variants() {
    const { epochs, reduced_epochs: reduced, graded } = this.settings;
    if (reduced === 0 || reduced === epochs) return [this];
    const forms = [this.with({ reduced_epochs: 0, graded: false, least_epochs: this.least })];
    for (let fewer = graded ? epochs - 1 : reduced; fewer >= reduced; fewer -= 1) forms.push(this.#of(fewer));
    return forms;
  }

  /** With the epochs that were whole by then, if they are enough. @param {number} share @returns {any} */
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
   * Where it may end early, a copy of the parameters besides.
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
