/** FedPEFT: devices train and send only a small tunable set and the head (strategies/kinds/peft.py). */

import { clip } from "../gradients.js";
import { SoftmaxHead } from "../head.js";
import { planBatches } from "../local_training.js";
import { listOf, number, text } from "../records.js";
import { forwardWork } from "../workload.js";
import { everyOne, pace } from "./kind.js";
import { FIELDS, FedAvg } from "./fedavg.js";

/** By tunable set: paper 003, section IV-A. It names none for the last three; they are as bias and prompt. */
const LEARNING_RATES = new Map(
  Object.entries({
    head: 0.005,
    bias: 0.01,
    adapter: 0.005,
    prompt: 0.01,
    prefix: 0.01,
    lora: 0.01,
    sparse: 0.01,
  }),
);

/**
 * Trains a parameter-efficient set together with the head. `tunable` "head" is linear probing: with cross-entropy
 * alone, each sample then passes through the network once, not once an epoch. `tunables` names several sets, one form
 * for each, for devices to choose from. lr: 0 is the paper's for the set.
 */
export class Peft extends FedAvg {
  static kind = "peft";
  static fields = {
    ...FIELDS,
    lr: [number, 0],
    momentum: [number, 0],
    weight_decay: [number, 1e-4],
    tunable: [text, "bias"],
    tunables: [listOf(text), []],
  };

  /** @param {any} settings Throws RangeError. */
  constructor(settings) {
    const { tunable, tunables } = settings;
    const unknown = [tunable, ...tunables].find((name) => !LEARNING_RATES.has(name));
    if (unknown !== undefined) {
      const names = [...LEARNING_RATES.keys()].join(", ");
      throw new RangeError(`tunable set '${unknown}' is not one of few parameters; those are ${names}`);
    }
    if (new Set(tunables).size !== tunables.length) {
      throw new RangeError(`tunables are ${tunables.join(", ")}: each can be named once`);
    }
    super(settings);
  }

  get trained() {
    return this.settings.tunables[0] ?? this.settings.tunable;
  }

  get rate() {
    return this.settings.lr || /** @type {number} */ (LEARNING_RATES.get(this.trained));
  }

  get form() {
    return `${this.trained} ${super.form}`.trimEnd();
  }

  variants() {
    const { tunables } = this.settings;
    if (!tunables.length) return super.variants();
    return tunables.flatMap((/** @type {string} */ tunable) => this.with({ tunable, tunables: [] }).variants());
  }

  /**
   * The work of training. Linear probing computes features once, then runs forward and backward (twice as much)
   * through the head.
   * @param {import("./kind.js").Workload} workload
   */
  work(workload) {
    if (this.trained !== "head" || !this.isPlain) return super.work(workload);
    const { samples } = workload;
    const { epochs, batch } = this.settings;
    const work = forwardWork(workload, samples, workload.values("head"), this.codec);
    const steps = epochs * Math.ceil(samples / batch);
    const pass = { graph: "head", samples: 3 * samples * epochs, flops: workload.headFlops, steps };
    return { ...work, passes: [...work.passes, pass] };
  }

  /**
   * @param {import("./kind.js").DeviceModel} model
   * @param {import("./kind.js").LocalData} data
   * @param {import("./kind.js").Run} run
   */
  async train(model, data, run) {
    if (!this.trainsHead(model.manifest)) return super.train(model, data, run);
    const began = run.clock();
    const features = await model.features(data.x);
    await pace(run, { began, done: 1 });
    const head = new SoftmaxHead(model.manifest, model.weights);
    const trainLoss = await this.#probe(head, features, data.y, run, this.clipNormFor(model.manifest));
    const tensors = head.params.tensors();
    return { kind: this.name, form: this.form, tensors, numExamples: data.y.length, trainLoss };
  }

  /**
   * Trains the head; returns the mean loss of the last epoch.
   * @param {SoftmaxHead} head
   * @param {Float32Array} features
   * @param {Int32Array} y
   * @param {import("./kind.js").Run} run
   * @param {number} clipNorm
   */
  async #probe(head, features, y, run, clipNorm) {
    const { epochs, batch: size } = this.settings;
    const plan = { sgd: this.sgd, epochs, batch: size, indices: everyOne(y.length), tunable: this.trained };
    const { batches, before } = await planBatches(plan, run);
    const [steps, began] = [this.sgd.start(head.params.vector), run.clock()];
    let total = 0;
    for (const [place, batch] of batches.entries()) {
      const loss = head.lossAndGrads(features, y, batch);
      if (place >= before) total += loss * batch.length;
      if (clipNorm) clip(head.grads.vector, clipNorm);
      steps.step(head.params.vector, head.grads.vector);
      await pace(run, { began, done: (place + 1) / batches.length });
    }
    return total / y.length;
  }
}
