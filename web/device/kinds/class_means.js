/** FedNCM: sums of features by class, whose means make a classifier (strategies/class_means.py). */

import { float32 } from "../flat.js";
import { number, oneOf, truth, whole } from "../records.js";
import { forwardWork } from "../workload.js";
import { Usual, drawn, pace } from "./kind.js";
import { MOST, counts, positive } from "./settings.js";

/**
 * One forward pass; per class, the sum of the features and the count, of as many `samples` drawn evenly where
 * the device has more (0: of all). What is made of them is the aggregator's.
 */
export class ClassMeans extends Usual {
  static kind = "class-means";
  static fields = {
    head: [oneOf("normalised-means", "nearest-mean", "trained"), "normalised-means"],
    steps: [whole(), 20],
    lr: [number, 0.1],
    gathered: [truth, false],
    smallest_count: [whole(), 2],
    samples: [whole(0, MOST), 0],
  };

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    super(settings);
    counts(settings, ["steps", "smallest_count"]);
    positive(settings, "lr");
  }

  /** @param {import("./kind.js").Workload} workload */
  unfit(workload) {
    const [smallest, most] = [this.settings.smallest_count, Math.max(0, ...workload.classCounts)];
    const few = most >= smallest ? "" : `a class needs ${smallest} samples to be sent, the largest here has ${most}`;
    return super.unfit(workload) || few;
  }

  /** @param {import("./kind.js").Workload} workload */
  work(workload) {
    const measured = this.#measured(workload.samples);
    return forwardWork(workload, measured, (workload.featureWidth + 1) * workload.labels);
  }

  /** How many samples' features a device of so many computes. @param {number} samples */
  #measured(samples) {
    return this.settings.samples ? Math.min(samples, this.settings.samples) : samples;
  }

  /**
   * @param {import("./kind.js").DeviceModel} model
   * @param {import("./kind.js").LocalData} data
   * @param {import("./kind.js").Run} run
   */
  async train(model, data, run) {
    const began = run.clock();
    const { x, y } = await drawn(data, this.#measured(data.y.length), run);
    const features = await model.features(x);
    await pace(run, { began, done: 1 });
    const { labels, head } = model.manifest;
    const sums = new Float64Array(labels.length * head.features);
    const seen = new Int32Array(labels.length);
    for (const label of y) seen[label] += 1;
    seen.forEach((n, label) => (seen[label] = n < this.settings.smallest_count ? 0 : n));
    y.forEach((label, row) => {
      if (!seen[label]) return;
      for (let i = 0; i < head.features; i += 1)
        sums[label * head.features + i] += features[row * head.features + i];
    });
    const tensors = new Map([
      ["sums", float32([labels.length, head.features], Float32Array.from(sums))],
      ["counts", { dtype: "int32", shape: [labels.length], data: seen }],
    ]);
    const counted = seen.reduce((sum, n) => sum + n, 0);
    const numExamples = Math.floor((data.y.length * counted) / Math.max(1, y.length));
    return { kind: this.name, form: this.form, tensors, numExamples, trainLoss: NaN };
  }

  /** @param {import("../manifest.js").Manifest} manifest */
  expected({ labels, head }) {
    return [
      { name: "sums", shape: [labels.length, head.features], dtype: "float32" },
      { name: "counts", shape: [labels.length], dtype: "int32" },
    ];
  }
}
