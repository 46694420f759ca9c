/** FedMeZO: devices only run inference; they get a seed and send `num_z` scalars (strategies/kinds/zeroth_order.py). */

import { activationBytes } from "../cost.js";
import { RADEMACHER, checkGenerator } from "../directions.js";
import { float32 } from "../flat.js";
import { rngOf } from "../randomness.js";
import { number, oneOf, text, whole } from "../records.js";
import { perturb } from "../replaying.js";
import { general } from "../rounding.js";
import { unit } from "../step_size.js";
import { passes } from "../workload.js";
import { StrategyDefaults, gathered, pace } from "./kind.js";
import { belowOne, counts, positive, tunableSet } from "./settings.js";

/** @typedef {import("./kind.js").LocalData} LocalData */
/** @typedef {import("./kind.js").Run} Run */

/** Bytes on the wire of a contribution of two scalars, topic included. */
const WIRE_BYTES = 190;
const MOST_DIRECTIONS = 1024;

/**
 * Devices send projected gradients g_p along `num_z` directions z_p that all devices of the round share; u is the unit
 * of length (`sizing`). sides = 2: g_p = (L(w + eps u z_p) - L(w - eps u z_p)) / (2 eps). sides = 1:
 * g_p = (L(w + eps u z_p) - L(w)) / eps. Each loss is the mean over the local data, or over the share `sampled` of it,
 * drawn anew for each round.
 */
export class ZerothOrder extends StrategyDefaults {
  static kind = "zeroth-order";
  static fields = {
    num_z: [whole(), 2],
    eps: [number, 1e-3],
    lr: [number, 1e-2],
    tunable: [text, "all"],
    generator: [text, RADEMACHER],
    sides: [oneOf(1, 2), 2],
    sizing: [oneOf("absolute", "relative"), "absolute"],
    beta: [number, 0.99],
    sampled: [number, 1],
  };

  /** @param {any} settings Throws RangeError, UnknownGenerator. */
  constructor(settings) {
    super(settings);
    counts(settings, ["num_z"], MOST_DIRECTIONS);
    positive(settings, "eps", "lr", "sampled");
    if (settings.sampled > 1) {
      throw new RangeError(
        `sampled is ${general(settings.sampled)}, expected at most 1: a part of a device's samples`,
      );
    }
    belowOne(settings, "beta");
    tunableSet(settings.tunable);
    checkGenerator(settings.generator);
  }

  get scalars() {
    return this.settings.num_z;
  }

  /** How many losses a device measures: passes over its data, or over the part that is `sampled`. @returns {number} */
  get losses() {
    const { sides, num_z: directions } = this.settings;
    return sides === 2 ? 2 * directions : directions + 1;
  }

  /**
   * Work: `losses` forward passes over the round's samples; memory of inference and a copy of the set.
   * @param {import("./kind.js").Workload} workload
   */
  work(workload) {
    const { tunable, num_z: directions } = this.settings;
    const graph = `loss.${tunable}`;
    const work = passes(workload, { [graph]: this.losses * this.#count(workload.samples) });
    const memoryBytes = 2 * workload.weightsBytes + 4 * workload.values(tunable);
    return {
      passes: work,
      peakBytes: memoryBytes + workload.samples * workload.sampleBytes + activationBytes(workload, graph),
      bytesUp: WIRE_BYTES + 4 * Math.max(0, directions - 2),
      bytesDown: workload.downloadBytes,
    };
  }

  /** @param {import("./kind.js").DeviceModel} model @param {LocalData} data @param {Run} run */
  async train(model, data, run) {
    const { sides, eps } = this.settings;
    const began = run.clock();
    /** @type {number[]} */
    const losses = [];
    for await (const loss of this.#measured(model, await this.#drawn(data, run), run)) {
      losses.push(loss);
      await pace(run, { began, done: losses.length / this.losses });
    }
    const ups = sides === 1 ? losses.slice(1) : losses.filter((_, i) => i % 2 === 0);
    const down = (/** @type {number} */ p) => (sides === 1 ? losses[0] : losses[2 * p + 1]);
    const apart = Float32Array.from(ups, (up, p) => (up - down(p)) / (sides * eps));
    const trainLoss = losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
    const tensors = new Map([["g", float32([apart.length], apart)]]);
    return { kind: this.name, form: this.form, tensors, numExamples: data.y.length, trainLoss };
  }

  /** The samples on which this round's losses are measured. @param {LocalData} data @param {Run} run */
  async #drawn(data, run) {
    if (this.settings.sampled === 1) return data;
    const samples = data.y.length;
    const order = (await rngOf(run)).permutation(samples);
    return gathered(data, order.subarray(0, this.#count(samples)).sort());
  }

  /** @param {number} samples */
  #count(samples) {
    return Math.ceil(this.settings.sampled * samples);
  }

  /**
   * The losses in order: forth and back along each direction, or at the base and then along each.
   * @param {import("./kind.js").DeviceModel} model @param {LocalData} data @param {Run} run
   */
  async *#measured(model, { x, y }, run) {
    const { tunable, sizing, sides, eps, generator, num_z: directions } = this.settings;
    const probe = await model.probe(tunable);
    const length = eps * unit(model.weights, model.manifest.specs(tunable), sizing);
    if (sides === 1) yield await probe.loss(x, y);
    for (let p = 0; p < directions; p += 1) {
      for (const sign of sides === 1 ? [1] : [1, -1]) {
        const along = { seed: run.seed, index: BigInt(p), scale: sign * length, generator };
        await perturb(probe.params, model.weights, along);
        yield await probe.loss(x, y);
      }
    }
  }

  /** @param {import("../manifest.js").Manifest} _manifest */
  expected(_manifest) {
    return [{ name: "g", shape: [this.settings.num_z], dtype: "float32" }];
  }
}
