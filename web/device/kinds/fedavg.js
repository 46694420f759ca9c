/** FedAvg: trains the model on local samples (McMahan et al. 2017, algorithm 1; strategies/kinds/fedavg.py). */

import { train } from "../local_training.js";
import { Sgd } from "../optimizer.js";
import { nullable, number, text, truth, whole } from "../records.js";
import { headSpecs, workOfTraining } from "../workload.js";
import { StrategyDefaults, everyOne } from "./kind.js";
import { belowOne, counts, notNegative, positive, tunableSet } from "./settings.js";
import { terms } from "./terms.js";

/** @typedef {import("./kind.js").Workload} Workload */
/** @typedef {import("./kind.js").DeviceModel} DeviceModel */
/** @typedef {import("./kind.js").LocalData} LocalData */
/** @typedef {import("./kind.js").Run} Run */
/** @typedef {import("./kind.js").Update} Update */

/** Usual bounds on the norm of a step's gradient: in general, and to train all of a pre-trained network. */
const CLIP_NORM = 2;
const CLIP_NORM_PRETRAINED = 0.5;

/** Prefix of the names of a few-shot trained classifier's tensors among those sent beside the base. */
export const FEW_SHOT = "few-shot/";

/** Settings of local SGD with their defaults. */
export const FIELDS = {
  codec: [text, ""],
  epochs: [whole(), 10],
  lr: [number, 0.1],
  momentum: [number, 0.5],
  weight_decay: [number, 1e-5],
  batch: [whole(), 64],
  clip_norm: [nullable(number), null],
  terms: [terms, {}],
  reduced_epochs: [whole(), 0],
  graded: [truth, false],
  least_epochs: [whole(), 0],
  weigh_epochs: [truth, false],
};

/**
 * Every parameter, trained for `epochs` local epochs. With `reduced_epochs` a device that cannot afford `epochs` trains
 * that many; with `graded` it trains half of `epochs`, a quarter, .., at least `reduced_epochs` or one. A device that
 * began all epochs and sees by its clock that they do not fit ends after the last whole epoch that does, if it has
 * done `least_epochs` (0: the fewest). With `weigh_epochs` an update of fewer epochs weighs less, in proportion. Kinds that train a part of the model, or on some samples, derive from it.
 */
export class FedAvg extends StrategyDefaults {
  static kind = "full";
  static fields = FIELDS;

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    super(settings);
    counts(settings, ["epochs", "batch"]);
    positive({ lr: this.rate }, "lr");
    notNegative(settings, "weight_decay");
    if (settings.clip_norm !== null) notNegative(settings, "clip_norm");
    belowOne(settings, "momentum");
    tunableSet(this.trained);
    const names = ["reduced_epochs", "least_epochs"].filter((name) => settings[name]);
    counts(settings, names, settings.epochs);
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
    return !Object.keys(this.settings.terms).length;
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

  /** @returns {any[]} */
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

  /** The form that was done if training ended after so many epochs. @param {number} epochs @returns {FedAvg} */
  ended(epochs) {
    return epochs >= this.settings.epochs ? this : this.#of(epochs);
  }

  /** The samples, times the share of `epochs` with `weigh_epochs`. @param {Update} update */
  weight(update) {
    const weight = super.weight(update);
    if (!this.settings.weigh_epochs) return weight;
    const [, epochs = this.settings.epochs] = /epochs=([0-9]+)$/.exec(update.form) ?? [];
    return (weight * Number(epochs)) / this.settings.epochs;
  }

  /** @param {number} epochs */
  #of(epochs) {
    return this.with({ epochs, reduced_epochs: epochs, graded: false, least_epochs: 0 });
  }

  /**
   * Indices of the local samples to train on; `model` holds the base.
   * @param {DeviceModel} _model @param {LocalData} data @param {Run} _run @returns {Promise<Int32Array>}
   */
  async chosen(_model, data, _run) {
    return everyOne(data.y.length);
  }

  /** The work of training on all local samples. @param {Workload} workload */
  work(workload) {
    return this.workOn(workload, workload.samples);
  }

  /**
   * The work of training on `samples`, after a forward pass over `scored`; with a copy of the parameters if training
   * may end early.
   * @param {Workload} workload
   * @param {number} samples
   */
  workOn(workload, samples, scored = 0) {
    const { epochs, batch } = this.settings;
    const trained = samples * epochs;
    const work = workOfTraining(workload, { tunable: this.trained, trained, scored, batch, codec: this.codec });
    const copyBytes = this.least ? 4 * workload.values(this.trained) : 0;
    return { ...work, peakBytes: work.peakBytes + copyBytes };
  }

  /**
   * @param {DeviceModel} model
   * @param {LocalData} data
   * @param {Run} run
   * @returns {Promise<import("./kind.js").Update>}
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
    const { epochs, batch } = this.settings;
    const clipNorm = this.clipNormFor(model.manifest);
    const proximal = this.#pulls(model, run);
    const { least, sgd, trained: tunable } = this;
    return { sgd, epochs, batch, indices, tunable, proximal, clipNorm, least };
  }

  /**
   * `clip_norm`, or the usual one for this bundle if it is null.
   * @param {any} manifest
   * @returns {number}
   */
  clipNormFor(manifest) {
    const whole = this.trained === "all" && !this.trainsHead(manifest);
    return this.settings.clip_norm ?? (manifest.pretrained && whole ? CLIP_NORM_PRETRAINED : CLIP_NORM);
  }

  /** @param {DeviceModel} model @param {Run} run */
  #pulls({ weights, manifest }, run) {
    const head = headSpecs(manifest).map((/** @type {any} */ spec) => spec.name);
    return Object.entries(this.settings.terms).map(([name, { mu, anchor }]) => {
      if (name === "fedprox") return { weight: mu, anchor: some(weights, manifest.names(this.trained)) };
      const from = anchor === "base" ? weights : fewShotHead(run.aside ?? new Map());
      return { weight: 2 * mu, anchor: some(from, head) };
    });
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
  const few = [...tensors].filter(([name]) => name.startsWith(FEW_SHOT));
  return new Map(few.map(([name, tensor]) => [name.slice(FEW_SHOT.length), tensor]));
}
