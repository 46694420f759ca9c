/** FedFSC: few-shot updates of the classifier on a frozen extractor (strategies/kinds/few_shot.py). */

import { SoftmaxHead } from "../head.js";
import { Sgd } from "../optimizer.js";
import { rngOf } from "../randomness.js";
import { number, text, truth, whole } from "../records.js";
import { forwardWork, headSpecs } from "../workload.js";
import { StrategyDefaults, everyOne, pace } from "./kind.js";
import { MOST, belowOne, counts, notNegative, positive } from "./settings.js";

/** @typedef {import("./kind.js").Workload} Workload */
/** @typedef {import("./kind.js").Run} Run */

/**
 * Trains the classifier alone; each epoch draws `shots` new samples of each class (thesis 002, equation 4.1).
 * `join_base` and `send_mean` are used by the aggregator only.
 */
export class FewShot extends StrategyDefaults {
  static kind = "few-shot";
  static fields = {
    codec: [text, ""],
    shots: [whole(), 10],
    epochs: [whole(), 10],
    lr: [number, 0.01],
    momentum: [number, 0.9],
    weight_decay: [number, 1e-3],
    batch: [whole(), 4],
    join_base: [truth, false],
    least_samples: [whole(0, MOST), 0],
    send_mean: [truth, false],
  };

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    super(settings);
    counts(settings, ["shots", "epochs", "batch"]);
    positive(settings, "lr");
    notNegative(settings, "weight_decay");
    belowOne(settings, "momentum");
  }

  /** @param {Workload} workload */
  unfit({ classCounts, samples }) {
    const present = classCounts.filter((count) => count > 0).length;
    const least = this.settings.least_samples;
    if (present < 2) return `needs 2 classes to tell apart, here is ${present}`;
    return samples < least ? `would train on ${samples} samples, expected ${least} or more` : "";
  }

  /**
   * Work: features of every sample once, then forward and backward (twice as much) through the head.
   * @param {Workload} workload
   */
  work(workload) {
    const { shots, epochs, batch } = this.settings;
    const values = (workload.featureWidth + 1) * workload.labels;
    const work = forwardWork(workload, workload.samples, values, this.codec);
    const drawn = workload.classCounts.reduce((sum, count) => sum + Math.min(shots, count), 0);
    const steps = epochs * Math.ceil(drawn / batch);
    const pass = { graph: "head", samples: 3 * epochs * drawn, flops: workload.headFlops, steps };
    return { ...work, passes: [...work.passes, pass] };
  }

  /**
   * @param {import("./kind.js").DeviceModel} model
   * @param {import("./kind.js").LocalData} data
   * @param {Run} run
   */
  async train(model, data, run) {
    const { lr, momentum, weight_decay: weightDecay } = this.settings;
    const began = run.clock();
    const features = await model.features(data.x);
    await pace(run, { began, done: 1 });
    const head = new SoftmaxHead(model.manifest, model.weights);
    const sgd = new Sgd(lr, momentum, weightDecay);
    const trainLoss = await head.train(features, data.y, this.#paced(data.y, run), sgd);
    const tensors = head.params.tensors();
    return { kind: this.name, form: this.form, tensors, numExamples: data.y.length, trainLoss };
  }

  /**
   * `draws`, checked against the clock: the next batch is asked for when the one before it is done.
   * @param {Int32Array} y
   * @param {Run} run
   */
  async *#paced(y, run) {
    const began = run.clock();
    const total =
      this.settings.epochs *
      membersOf(y).reduce((sum, members) => sum + Math.min(members.length, this.settings.shots), 0);
    let done = 0;
    for (const batch of this.draws(y, await rngOf(run))) {
      yield batch;
      done += batch.length;
      await pace(run, { began, done: done / total });
    }
  }

  /**
   * Batches of indices: each epoch has `shots` of each class, or all samples of a class with fewer.
   * @param {Int32Array} y @param {import("../randomness.js").Generator} rng @returns {Generator<Int32Array>}
   */
  *draws(y, rng) {
    const { shots, epochs, batch } = this.settings;
    const classes = membersOf(y);
    for (let epoch = 0; epoch < epochs; epoch += 1) {
      const rows = classes.flatMap((members) => [...rng.permutation(members).subarray(0, shots)]);
      const drawn = rng.permutation(Int32Array.from(rows));
      for (let start = 0; start < drawn.length; start += batch) yield drawn.subarray(start, start + batch);
    }
  }

  get unsummable() {
    const { join_base: joins, send_mean: sendsMean } = this.settings;
    if (joins && !sendsMean) return "";
    return "the mean of its classifiers counts each device alike, and masked updates count by their samples";
  }

  /** @param {import("../manifest.js").Manifest} manifest */
  expected(manifest) {
    return headSpecs(manifest);
  }
}

/** The indices of the samples of each class that has any. @param {Int32Array} y @returns {Int32Array[]} */
function membersOf(y) {
  const present = [...new Set(y)].sort((a, b) => a - b);
  return present.map((label) => everyOne(y.length).filter((i) => y[i] === label));
}
