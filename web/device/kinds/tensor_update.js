/** Base class of kinds that train and send tensors (strategies/training/tensor_update.py). */

import { train } from "../local_training.js";
import { Sgd } from "../optimizer.js";
import { number, oneOf, text, whole } from "../records.js";
import { headSpecs, workOfTraining } from "../workload.js";
import { StrategyDefaults, everyOne } from "./kind.js";
import { belowOne, counts, notNegative, onlyOff, positive, tunableSet } from "./settings.js";

/** @typedef {import("./kind.js").Workload} Workload */
/** @typedef {import("./kind.js").DeviceModel} DeviceModel */
/** @typedef {import("./kind.js").LocalData} LocalData */
/** @typedef {import("./kind.js").Run} Run */

/** Prefix of the names of a few-shot trained classifier's tensors among those sent beside the base. */
export const FEW_SHOT = "few-shot/";

/** Settings of local SGD with their defaults. `mu`: weight of FedProx's term; `mu_head`: of FSCProx's. */
export const FIELDS = {
  codec: [text, ""],
  epochs: [whole(), 10],
  lr: [number, 0.1],
  momentum: [number, 0.5],
  weight_decay: [number, 1e-5],
  batch: [whole(), 64],
  mu: [number, 0],
  clip_norm: [number, 2],
  moon: [onlyOff(0, "MOON's term is not trained in a browser"), 0],
  moon_tau: [number, 0.5],
  mu_head: [number, 0],
  head_anchor: [oneOf("few-shot", "base"), "few-shot"],
  dp: [onlyOff(null, "private training is not done in a browser"), null],
};

/** Base of kinds that train a tunable set on all local samples, or some of them. */
export class TensorUpdate extends StrategyDefaults {
  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    super(settings);
    counts(settings, ["epochs", "batch"]);
    positive({ lr: this.rate, moon_tau: settings.moon_tau }, "lr", "moon_tau");
    notNegative(settings, "weight_decay", "mu", "clip_norm", "mu_head");
    belowOne(settings, "momentum");
    tunableSet(this.trained);
  }

  /** The tunable set that is trained. @returns {string} */
  get trained() {
    return "all";
  }

  get trainsExtractor() {
    return true;
  }

  /** The learning rate of local training. @returns {number} */
  get rate() {
    return this.settings.lr;
  }

  get sgd() {
    return new Sgd(this.rate, this.settings.momentum, this.settings.weight_decay);
  }

  /** Whether training minimises cross-entropy alone: no proximal term. Gradients may be clipped. */
  get isPlain() {
    return !this.settings.mu && !this.settings.mu_head;
  }

  /**
   * Indices of the local samples to train on; `model` holds the base.
   * @param {DeviceModel} _model @param {LocalData} data @param {Run} _run @returns {Promise<Int32Array>}
   */
  async chosen(_model, data, _run) {
    return everyOne(data.y.length);
  }

  /** The form that was done if training ended after so many epochs. @returns {TensorUpdate} */
  ended(/** @type {number} */ _epochs) {
    return this;
  }

  /** The work of training on all local samples. @param {Workload} workload */
  work(workload) {
    return this.workOn(workload, workload.samples);
  }

  /**
   * The work of training on `samples`, after a forward pass over `scored`.
   * @param {Workload} workload
   * @param {number} samples
   */
  workOn(workload, samples, scored = 0) {
    const { epochs, batch } = this.settings;
    const trained = samples * epochs;
    return workOfTraining(workload, { tunable: this.trained, trained, scored, batch, codec: this.codec });
  }

  /**
   * @param {DeviceModel} model
   * @param {LocalData} data
   * @param {Run} run
   * @returns {Promise<import("./kind.js").TrainedUpdate>}
   */
  async train(model, data, run) {
    const plan = this.plan(model, run, await this.chosen(model, data, run));
    const { tensors, loss, epochs } = await train(model, data, plan, run);
    const { form } = this.ended(epochs);
    return { kind: this.name, form, tensors, numExamples: plan.indices.length, trainLoss: loss };
  }

  /**
   * @param {DeviceModel} model
   * @param {Run} run
   * @param {Int32Array} indices
   * @returns {import("../local_training.js").TrainingPlan}
   */
  plan(model, run, indices) {
    const { epochs, batch, clip_norm: clipNorm } = this.settings;
    const proximal = this.#pulls(model, run);
    return { sgd: this.sgd, epochs, batch, indices, tunable: this.trained, proximal, clipNorm };
  }

  /** @param {DeviceModel} model @param {Run} run */
  #pulls({ weights, manifest }, run) {
    const { mu, mu_head: muHead, head_anchor: anchored } = this.settings;
    const pulls = [];
    if (mu) pulls.push({ weight: mu, anchor: some(weights, manifest.names(this.trained)) });
    if (muHead) {
      const names = headSpecs(manifest).map((/** @type {any} */ spec) => spec.name);
      const from = anchored === "base" ? weights : fewShotHead(run.aside ?? new Map());
      pulls.push({ weight: 2 * muHead, anchor: some(from, names) });
    }
    return pulls;
  }

  /**
   * Whether `train` only computes features once and trains the classifier on them.
   * @param {import("../manifest.js").Manifest} manifest
   */
  trainsHead(manifest) {
    if (!this.isPlain || !Object.hasOwn(manifest.sets, this.trained)) return false;
    const names = (/** @type {any[]} */ specs) => specs.map((spec) => spec.name).join(" ");
    const isHead = names(manifest.specs(this.trained)) === names(headSpecs(manifest));
    return isHead && !manifest.statistics(this.trained).length;
  }

  /** The tensors of a contribution. @param {import("../manifest.js").Manifest} manifest */
  expected(manifest) {
    return [...manifest.specs(this.trained), ...manifest.statistics(this.trained)];
  }
}

/**
 * The tensors with these names, as far as they exist.
 * @param {import("../flat.js").Tensors} tensors @param {string[]} names
 */
function some(tensors, names) {
  return new Map([...tensors].filter(([name]) => names.includes(name)));
}

/**
 * The few-shot trained classifier among tensors, by the model's own names; empty if there is none.
 * @param {import("../flat.js").Tensors} tensors
 */
function fewShotHead(tensors) {
  const found = [...tensors].filter(([name]) => name.startsWith(FEW_SHOT));
  return new Map(found.map(([name, tensor]) => [name.slice(FEW_SHOT.length), tensor]));
}
