/** FedNCM: devices send sums of features by class, whose means make a classifier (strategies/kinds/class_means.py). */

import { sumByClass } from "../class_sums.js";
import { float32 } from "../flat.js";
import { number, oneOf, truth, whole } from "../records.js";
import { ENVELOPE_BYTES, forwardWork } from "../workload.js";
import { StrategyDefaults, pace } from "./kind.js";
import { counts, positive } from "./settings.js";

/**
 * Runs one forward pass, and sends the sum of features and the count of each class, of which the aggregator makes a
 * classifier. In a round that asks for class statistics, a contribution is these statistics alone
 * (class_statistics.js).
 */
export class ClassMeans extends StrategyDefaults {
  static kind = "class-means";
  static fields = {
    head: [oneOf("normalised-means", "nearest-mean", "trained"), "normalised-means"],
    steps: [whole(), 20],
    lr: [number, 0.1],
    gathered: [truth, false],
    smallest_count: [whole(), 2],
  };

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    super(settings);
    counts(settings, ["steps", "smallest_count"]);
    positive(settings, "lr");
  }

  get summed() {
    return ["sums", "counts"];
  }

  /** @param {import("./kind.js").Workload} workload */
  unfit(workload) {
    const smallest = Math.max(this.settings.smallest_count, this.statistics?.smallest_count ?? 0);
    const most = Math.max(0, ...workload.classCounts);
    const few = most >= smallest ? "" : `needs ${smallest} samples of a class, the largest here has ${most}`;
    return super.unfit(workload) || few;
  }

  /** @param {import("./kind.js").Workload} workload */
  work(workload) {
    if (this.statistics) return { ...forwardWork(workload, 0, 0), bytesUp: ENVELOPE_BYTES };
    return forwardWork(workload, workload.samples, (workload.featureWidth + 1) * workload.labels);
  }

  /**
   * @param {import("./kind.js").DeviceModel} model
   * @param {import("./kind.js").LocalData} data
   * @param {import("./kind.js").Run} run
   */
  async train(model, data, run) {
    const about = { kind: this.name, form: this.form, trainLoss: NaN };
    if (this.statistics) return { ...about, tensors: new Map(), numExamples: data.y.length };
    const began = run.clock();
    const features = await model.features(data.x);
    await pace(run, { began, done: 1 });
    const { labels, head } = model.manifest;
    const at = { x: features, y: data.y };
    const { counts: numbers, sums } = sumByClass(at, head.features, labels.length, this.settings.smallest_count);
    const all = new Float32Array(labels.length * head.features);
    for (const [label, sum] of sums) all.set(sum, label * head.features);
    const tensors = new Map([
      ["sums", float32([labels.length, head.features], all)],
      ["counts", { dtype: "int32", shape: [labels.length], data: numbers }],
    ]);
    return { ...about, tensors, numExamples: numbers.reduce((sum, n) => sum + n, 0) };
  }

  /** @param {import("../manifest.js").Manifest} manifest */
  expected({ labels, head }) {
    if (this.statistics) return [];
    return [
      { name: "sums", shape: [labels.length, head.features], dtype: "float32" },
      { name: "counts", shape: [labels.length], dtype: "int32" },
    ];
  }
}
