/** One task as this device has it: the model on its engine, the local samples, what both cost here. */

import { choose } from "./choose.js";
import { DataError } from "./errors.js";
import { known } from "./kinds/registry.js";
import { MOST, judged } from "./judging.js";
import { Measurements, grown } from "./calibration.js";
import { measured } from "./measuring.js";
import { profileOf } from "./profile.js";
import { quicker } from "./timing.js";
import { Bench } from "./bench.js";
import { corrected, perform } from "./work.js";
import { workload } from "./workload.js";

/** @typedef {import("./cost.js").Workload} Workload */
/**
 * What a round gives a device: the offer, its base, and what came beside it.
 * @typedef {{offer: any, base: import("./flat.js").Tensors, aside: import("./flat.js").Tensors}} Given
 *
 * Who is told of the work, and asked: `progress`, from 0 to 1, may throw Stopped; `lost`: seconds that the
 * work has stood still; `decided` is told before anything is tried.
 * @typedef {{progress: (done: number) => Promise<void>, lost: () => number,
 *   decided: (decision: any) => void}} Listener
 */

/** See `make`. */
export class DeviceTask {
  #environment;
  #samples;
  #measurements;
  #link;
  #key;
  /** Rounds in which nothing was thought to fit. */
  #unfit = 0;
  /** @type {import("./calibration.js").Learnt} */
  #learnt = /** @type {any} */ (null);

  /**
   * Loads the samples, opens the engine, measures or remembers its speed. Throws DataError, ModelError.
   * @param {any} environment see agent.js @param {import("./bundle.js").Bundle} bundle
   * @param {import("./link_speed.js").LinkSpeed} link
   */
  static async make(environment, bundle, link) {
    const samples = await environment.samples(bundle.manifest);
    const model = await environment.open(bundle);
    const task = new DeviceTask(environment, { bundle, samples, model }, link);
    try {
      await task.#measure();
    } catch (error) {
      await model.unload(); // another is opened at the next offer
      throw error;
    }
    task.#say();
    return task;
  }

  /** @param {any} environment @param {any} parts @param {import("./link_speed.js").LinkSpeed} link */
  constructor(environment, { bundle, samples, model }, link) {
    this.manifest = bundle.manifest;
    this.model = model;
    this.#environment = environment;
    this.#samples = samples;
    this.#link = link;
    this.#measurements = new Measurements(environment.disk, environment.log);
    this.#key = `${bundle.sha256}@${model.runtime.name} ${model.runtime.threads}`;
  }

  /** Who joins, now that it is known. @param {bigint} boot */
  hello(boot) {
    const { memory, name, battery, engine } = this.profile;
    return {
      boot,
      num_examples: this.#samples.count(),
      profile: name,
      memory_bytes: Math.floor(memory.limitBytes),
      engine,
      battery_percent: battery ? Math.round(battery.percent) : -1,
      task: "",
    };
  }

  /** As this device is now, with what was learnt in earlier rounds. */
  get profile() {
    return profileOf(this.#environment.host, this.#learnt, this.model.runtime.name, this.#link);
  }

  /**
   * The round's work from this base model; see `perform` in work.js. Learns from how long it took. Throws
   * KindError when no kind of the offer can be done here, TensorError for a base that does not fit, Stopped.
   * @param {Given} given @param {number} deadline on the device's clock @param {Listener} listener
   */
  async perform(given, deadline, listener) {
    const { offer, base } = given;
    const { name, clock, log, host } = this.#environment;
    const kinds = known(offer.kinds, (text) => log("warning", text));
    const data = this.#samples.training();
    await this.model.load(base);
    const counts = classCounts(data.y, this.manifest.labels.length);
    const load = workload(this.manifest, counts).with({ downloadBytes: 0 });
    const bench = new Bench({ name, model: this.model, data, workload: load, clock, host, given, listener });
    const { lost, decided } = listener;
    try {
      await this.#lookAgain(kinds, load, deadline - lost() - clock());
      const { profile } = this;
      const outcome = await perform(bench, profile, { kinds, seed: offer.seed, deadline, lost, decided });
      await this.#learn(profile, outcome);
      return outcome;
    } finally {
      await this.model.unload(); // also where a pause ends it
    }
  }

  /** Accuracy and loss of this base on held-out samples; null where there are none. @param {Given} given */
  async judge({ base }) {
    const held = this.#samples.held();
    if (!held.y.length) return null;
    await this.model.load(base);
    try {
      return await judged(this.model, held);
    } finally {
      await this.model.unload();
    }
  }

  /** About how long `judge` takes, in seconds. */
  get judgingS() {
    const { flops } = this.manifest.graphs.forward;
    return Math.min(MOST, this.#samples.held().y.length) * this.#learnt.speed.of("forward", flops);
  }

  /** Gives back what the engine holds. */
  async close() {
    await this.model.unload();
  }

  async #measure() {
    const { clock, log } = this.#environment;
    const kept = await this.#measurements.get(this.#key);
    if (kept) {
      this.#learnt = kept;
      return;
    }
    const speed = await measured(this.model, clock);
    this.#learnt = { speed, corrections: new Map(), growth: new Map() };
    await this.#measurements.put(this.#key, this.#learnt);
    const forward = 1e3 * speed.of("forward", this.manifest.graphs.forward.flops);
    log("info", `${forward.toFixed(2)} ms a forward pass (${speed.source})`);
  }

  /**
   * Who was busy when it measured itself would sit out for good. Rounds in which nothing fits make it look
   * again: the first of them, the second, the fourth, and so on.
   */
  async #lookAgain(/** @type {any[]} */ kinds, /** @type {Workload} */ load, /** @type {number} */ leftS) {
    if (!load.samples || choose(this.profile, kinds, load, leftS).chosen) return;
    this.#unfit += 1;
    if (!Number.isInteger(Math.log2(this.#unfit))) return;
    const { clock, log } = this.#environment;
    log("info", "nothing fits as it was measured: measuring again");
    const speed = quicker(this.#learnt.speed, await measured(this.model, clock));
    this.#learnt = { ...this.#learnt, speed };
  }

  /** That it is known here. */
  #say() {
    const { tell } = this.#environment;
    const { engine, cores, memory, speed } = this.profile;
    const forwardS = speed.of("forward", this.manifest.graphs.forward.flops);
    const { runtime } = this.model;
    const examples = this.#samples.count();
    tell({
      type: "task",
      manifest: this.manifest,
      engine,
      why: runtime.why,
      cores,
      memoryBytes: memory.limitBytes,
      forwardS,
      examples,
    });
  }

  async #learn(/** @type {any} */ profile, /** @type {any} */ outcome) {
    const { speed } = this.#learnt;
    this.#learnt = { speed, corrections: corrected(profile, outcome), growth: grown(profile, outcome) };
    await this.#measurements.put(this.#key, this.#learnt);
  }
}

/**
 * Samples of each class. Throws DataError for a label that is none. @param {Int32Array} y
 * @param {number} labels
 */
export function classCounts(y, labels) {
  const counts = new Array(labels).fill(0);
  for (const label of y) {
    if (!(label >= 0 && label < labels)) {
      throw new DataError(`label ${label} is not of the task, whose labels are 0 to ${labels - 1}`);
    }
    counts[label] += 1;
  }
  return counts;
}
