/** FedFT-EDS: fine-tunes the upper part on the samples of highest entropy (strategies/kinds/entropy_subset.py). */

import { Generator, rngOf } from "../randomness.js";
import { listOf, number, oneOf, text, whole } from "../records.js";
import { percent } from "../rounding.js";
import { entropy } from "../softmax.js";
import { everyOne } from "./kind.js";
import { MOST, positive } from "./settings.js";
import { FIELDS, FedAvg } from "./fedavg.js";

/**
 * Trains the upper part on the share of local samples that the model is least sure of; select="random" draws as many
 * samples in each round instead. `rho` is the temperature of the hardened softmax softmax(z / rho).
 */
export class EntropySubset extends FedAvg {
  static kind = "entropy-subset";
  static fields = {
    ...FIELDS,
    epochs: [whole(), 5],
    weight_decay: [number, 0],
    shares: [listOf(number), [0.5, 0.25, 0.1]],
    rho: [number, 0.1],
    tunable: [text, "mid"],
    select: [oneOf("entropy", "random"), "entropy"],
    least_samples: [whole(0, MOST), 0],
    weigh: [oneOf("selected", "local"), "selected"],
  };

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    const { shares } = settings;
    if (!shares.length || !shares.every((/** @type {number} */ share) => share > 0 && share <= 1)) {
      throw new RangeError(`shares are ${shares.join(", ")}, expected one or more in (0, 1]`);
    }
    positive(settings, "rho");
    super(settings);
  }

  get trained() {
    return this.settings.tunable;
  }

  /** @returns {number} */
  get share() {
    return this.settings.shares[0];
  }

  get form() {
    return `${percent(this.share)} ${super.form}`.trimEnd();
  }

  variants() {
    const { shares, graded } = this.settings;
    if (shares.length === 1) return super.variants();
    const forms = [...shares].sort((a, b) => b - a).flatMap((share) => this.with({ shares: [share] }).variants());
    const trained = (/** @type {EntropySubset} */ { share, settings }) => share * settings.epochs;
    return graded ? forms.sort((a, b) => trained(b) - trained(a)) : forms;
  }

  /** @param {import("./kind.js").Update} update */
  weight(update) {
    const selected = super.weight(update);
    if (this.settings.weigh === "selected") return selected;
    const { shares } = this.settings;
    return selected / shares.find((/** @type {number} */ share) => update.form.startsWith(percent(share)));
  }

  /** @param {import("./kind.js").Workload} workload */
  unfit(workload) {
    const { samples } = workload;
    const [count, least] = [this.#count(samples), this.settings.least_samples];
    if (count >= Math.min(least, samples)) return super.unfit(workload);
    return `would train on ${count} of ${samples} samples, expected ${least} or more`;
  }

  /** @param {import("./kind.js").Workload} workload */
  work(workload) {
    const { samples } = workload;
    return this.workOn(workload, this.#count(samples), this.#scores ? samples : 0);
  }

  /**
   * The samples to train on; a random draw uses other random bits than the order of training.
   * @param {import("./kind.js").DeviceModel} model
   * @param {import("./kind.js").LocalData} data
   * @param {import("./kind.js").Run} run
   */
  async chosen(model, data, run) {
    const samples = data.y.length;
    if (this.#scores) return this.leastSure(await model.logits(data.x), model.manifest.labels.length);
    if (this.share === 1) return everyOne(samples);
    const rng = new Generator((await rngOf(run)).integers(1n << 63n));
    return rng.permutation(samples).subarray(0, this.#count(samples)).sort();
  }

  /**
   * Indices of the `share` of samples with the highest hardened entropy, highest first (equations 6.8 and
   * 6.9). Equal entropies keep the order of the data.
   * @param {Float32Array} logits (n, classes)
   * @param {number} classes
   */
  leastSure(logits, classes) {
    const rho = Math.fround(this.settings.rho);
    const scores = entropy(
      logits.map((value) => value / rho),
      classes,
    );
    const order = everyOne(scores.length).sort((left, other) => scores[other] - scores[left]);
    return order.subarray(0, this.#count(scores.length));
  }

  get #scores() {
    return this.settings.select === "entropy" && this.share < 1;
  }

  /** @param {number} samples */
  #count(samples) {
    return Math.ceil(this.share * samples);
  }

  /** Never: labels alone do not tell which samples it trains on. */
  trainsHead() {
    return false;
  }
}
