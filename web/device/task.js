/** One task on this device: model, samples, costs, and the work on its rounds (device/training/local_task.py). */

import { Measurements, grown } from "./calibration.js";
import { choose } from "./choose.js";
import { DataError } from "./errors.js";
import { hasHead } from "./held_out.js";
import { MOST, judged } from "./judging.js";
import { supportedKinds } from "./kinds/registry.js";
import { uploadTerms } from "./masking/masked_update.js";
import { measured } from "./measuring.js";
import { profileOf } from "./profile.js";
import { RealWorker } from "./real_worker.js";
import { restReason } from "./resting.js";
import { quicker } from "./timing.js";
import { corrected, perform } from "./work.js";
import { workload } from "./workload.js";

/** @typedef {import("./cost.js").Workload} Workload */
/**
 * What a device gets for a round: the offer, the base model, and the tensors sent beside it (`aside`).
 * @typedef {{offer: any, base: import("./flat.js").Tensors, aside: import("./flat.js").Tensors}} RoundInputs
 *
 * Callbacks of the work: `progress`, from 0 to 1, may throw WorkStopped; `lost` gives the seconds that the work has
 * been paused; `decided` is called before anything is tried.
 * @typedef {{progress: (done: number) => Promise<void>, lost: () => number,
 *   decided: (decision: any) => void}} Listener
 */

/** A device's task; see `make`. */
export class DeviceTask {
  #environment;
  #samples;
  #measurements;
  #link;
  #key;
  /** Rounds in which nothing fitted by the measured speed. */
  #unfit = 0;
  /** @type {import("./calibration.js").Corrections} */
  #calibration = /** @type {any} */ (null);

  /**
   * Loads the samples, opens the engine, and measures its speed, or reuses it if it was measured before. Throws
   * DataError, ModelError.
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
      await model.unload(); // the next offer opens another one
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

  /** The device's hello, now that its samples and profile are known. @param {bigint} boot */
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

  /** The profile now, with the corrections of earlier rounds. */
  get profile() {
    return profileOf(this.#environment.host, this.#calibration, this.model.runtime.name, this.#link);
  }

  /**
   * Do the round's work from this base model and learn from how long it took; see `perform` in work.js. Throws
   * KindError when no kind of the offer can be done here, TensorError for a base that does not fit, WorkStopped.
   * @param {RoundInputs} given @param {number} deadline on the device's clock @param {Listener} listener
   */
  async perform(inputs, deadline, listener) {
    const { offer, base } = inputs;
    const { name, clock, log, host } = this.#environment;
    const kinds = supportedKinds(offer.kinds, (text) => log("warning", text));
    const data = this.#samples.training();
    await this.model.load(base);
    const counts = classCounts(data.y, this.manifest.labels.length);
    const load = workload(this.manifest, counts).with({ downloadBytes: 0 });
    const worker = new RealWorker({ name, model: this.model, data, workload: load, clock, host, given: inputs, listener });
    const { lost: lostS, decided } = listener;
    try {
      await this.#remeasure(kinds, load, deadline - lostS() - clock());
      const { profile } = this;
      const terms = offer.masks ? uploadTerms(offer, this.manifest) : null;
      const outcome = await perform(worker, profile, { kinds, terms, seed: offer.seed, deadline, lost: lostS, decided });
      await this.#learn(profile, outcome);
      return outcome;
    } finally {
      await this.model.unload(); // also if a pause ended the work
    }
  }

  /** Why the device rests in this round; empty if it does not. @param {any} offer @param {number} remainingS */
  async restReason(offer, remainingS) {
    if (!offer.shortages || !offer.kinds.length) return "";
    const kinds = supportedKinds(offer.kinds, () => {});
    const counts = classCounts(this.#samples.training().y, this.manifest.labels.length);
    const load = workload(this.manifest, counts).with({ downloadBytes: 0 });
    const terms = offer.masks ? uploadTerms(offer, this.manifest) : null;
    const plan = choose(this.profile, kinds, load, remainingS, terms);
    return restReason(offer.shortages, { seed: offer.seed, device: this.#environment.name }, plan, load);
  }

  /**
   * Accuracy and loss of this base, with its own head, on held-out samples, and whether the served head may be another
   * (`otherHead`); null if there are no samples. @param {RoundInputs} given
   */
  async judge({ base, aside }) {
    const holdout = this.#samples.held();
    if (!holdout.y.length) return null;
    await this.model.load(base);
    try {
      return { ...(await judged(this.model, holdout)), otherHead: hasHead(aside) };
    } finally {
      await this.model.unload();
    }
  }

  /** About how long `judge` takes, in seconds. */
  get judgingS() {
    const { flops } = this.manifest.graphs.forward;
    return Math.min(MOST, this.#samples.held().y.length) * this.#calibration.speed.of("forward", flops);
  }

  /** Frees the memory of the engine. */
  async close() {
    await this.model.unload();
  }

  async #measure() {
    const { clock, log } = this.#environment;
    const stored = await this.#measurements.get(this.#key);
    if (stored) {
      this.#calibration = stored;
      return;
    }
    const speed = await measured(this.model, clock);
    this.#calibration = { speed, corrections: new Map(), growth: new Map() };
    await this.#measurements.put(this.#key, this.#calibration);
    const forward = 1e3 * speed.of("forward", this.manifest.graphs.forward.flops);
    log("info", `${forward.toFixed(2)} ms a forward pass (${speed.source})`);
  }

  /**
   * Measure the speed again if nothing fits: in the first such round, the second, the fourth, and so on. Otherwise a
   * device that was busy when it measured itself would sit out for good.
   */
  async #remeasure(/** @type {any[]} */ kinds, /** @type {Workload} */ load, /** @type {number} */ leftS) {
    if (!load.samples || choose(this.profile, kinds, load, leftS).chosen) return;
    this.#unfit += 1;
    if (!Number.isInteger(Math.log2(this.#unfit))) return;
    const { clock, log } = this.#environment;
    log("info", "nothing fits by the measured speed: measuring again");
    const speed = quicker(this.#calibration.speed, await measured(this.model, clock));
    this.#calibration = { ...this.#calibration, speed };
  }

  /** Tell that the task is known here. */
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
    const { speed } = this.#calibration;
    this.#calibration = { speed, corrections: corrected(profile, outcome), growth: grown(profile, outcome) };
    await this.#measurements.put(this.#key, this.#calibration);
  }
}

/**
 * The number of samples of each class. Throws DataError for a label that the task does not have. @param {Int32Array} y
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
