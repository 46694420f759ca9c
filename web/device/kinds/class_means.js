/** FedNCM: sums of features by class, whose means make a classifier (strategies/class_means.py). */

import { byClass, rowBytes, specOfRows, writeRows } from "../class_sums.js";
import { float32 } from "../flat.js";
import { number, oneOf, truth, whole } from "../records.js";
import { forwardWork, uploadBytes } from "../workload.js";
import { Usual, drawn, pace } from "./kind.js";
import { MOST, counts, positive } from "./settings.js";

const ROWS = "rows";

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
    numbers: [oneOf("float32", "float16", "int8"), "float32"],
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
    const work = forwardWork(workload, measured, (workload.featureWidth + 1) * workload.labels);
    const { numbers, smallest_count: smallest } = this.settings;
    if (numbers === "float32") return work;
    const present = workload.classCounts.filter((/** @type {number} */ count) => count >= smallest).length;
    return { ...work, bytesUp: present * rowBytes(workload.featureWidth, numbers) + uploadBytes(0, 1) };
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
    const { numbers, smallest_count: smallest } = this.settings;
    const found = byClass({ x: features, y }, head.features, labels.length, smallest);
    const tensors = numbers === "float32" ? plain(found) : new Map([[ROWS, writeRows(found, numbers)]]);
    const counted = found.counts.reduce((sum, n) => sum + n, 0);
    const numExamples = Math.floor((data.y.length * counted) / Math.max(1, y.length));
    return { kind: this.name, form: this.form, tensors, numExamples, trainLoss: NaN };
  }

  /** @param {import("../manifest.js").Manifest} manifest */
  expected({ labels, head }) {
    const { numbers } = this.settings;
    if (numbers !== "float32") return [specOfRows(ROWS, [labels.length, head.features], numbers)];
    return [
      { name: "sums", shape: [labels.length, head.features], dtype: "float32" },
      { name: "counts", shape: [labels.length], dtype: "int32" },
    ];
  }
}

/** Sums of all classes, and counts. @param {import("../class_sums.js").ClassSums} found */
function plain({ width, counts, sums }) {
  const all = new Float32Array(counts.length * width);
  for (const [label, sum] of sums) all.set(sum, label * width);
  return new Map([
    ["sums", float32([counts.length, width], all)],
    ["counts", { dtype: "int32", shape: [counts.length], data: counts }],
  ]);
}
