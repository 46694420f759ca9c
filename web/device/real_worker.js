/** What a device works with in one round, and how it trains one form of an update. Part of device/training/work.py. */

import * as classStatistics from "./class_statistics.js";
import { EngineError, OutOfMemory } from "./errors.js";
import { check } from "./flat.js";

/** Words with which engines and browsers report that no more memory is available. */
const NO_MEMORY = /bad_alloc|allocat|out of memory|memory access out of bounds|array buffer/i;

/**
 * @typedef {{name: string, model: any, data: any, workload: import("./cost.js").Workload, clock: () =>
 * number,
 *   host: import("./profile.js").Host, given: import("./task.js").RoundInputs,
 *   listener: import("./task.js").Listener}} Equipment
 */
export class RealWorker {
  #equipment;
  #peakBytes = NaN;
  #done = 0;
  #isAsking = false;

  /** @param {Equipment} equipment */
  constructor(equipment) {
    this.#equipment = equipment;
    this.workload = equipment.workload;
    this.clock = equipment.clock;
  }

  /** The most memory that the process was seen to hold since `begin`; 0 if the host does not tell. */
  get peakBytes() {
    return Number.isNaN(this.#peakBytes) ? 0 : this.#peakBytes;
  }

  begin() {
    this.#peakBytes = this.#equipment.host.residentBytes();
  }

  /**
   * @param {import("./choose.js").Candidate} chosen @param {bigint} seed @param {number} deadline
   * @returns {Promise<import("./work.js").Trained>}
   */
  async train({ strategy }, seed, deadline) {
    const { model, data } = this.#equipment;
    this.#done = 0;
    model.between = () => this.#ask(this.#done);
    try {
      const update = await classStatistics.train(strategy, model, data, this.#run(seed, deadline));
      check(update.tensors, classStatistics.expected(strategy, model.manifest));
      const form = update.form || strategy.form;
      return { form: ended(strategy, form), contribution: { ...update, form } };
    } catch (error) {
      await model.unload();
      throw refined(error);
    } finally {
      model.between = async () => {};
    }
  }

  /** Ask whether to go on. Runs of the model for others, made meanwhile, do not ask again. @param {number} done */
  async #ask(done) {
    if (this.#isAsking) return;
    this.#isAsking = true;
    try {
      await this.#equipment.listener.progress(done);
    } finally {
      this.#isAsking = false;
    }
  }

  #run(/** @type {bigint} */ seed, /** @type {number} */ deadline) {
    const { name, clock, given: inputs, listener, host } = this.#equipment;
    const progress = async (/** @type {number} */ done) => {
      this.#peakBytes = Math.max(this.#peakBytes, host.residentBytes());
      this.#done = done;
      await this.#ask(done);
    };
    const { round, rare } = inputs.offer;
    return { seed, device: name, clock, deadline, progress, aside: inputs.aside, lost: listener.lost, round, rare };
  }
}

/** The form with this name that remained when the clock stopped it, to a hundredth of its work. */
function ended(/** @type {any} */ strategy, /** @type {string} */ form) {
  if (form === strategy.form) return strategy;
  for (let n = 1; n < 100; n += 1) {
    const stopped = strategy.stopped(n / 100);
    if (stopped && stopped.form === form) return stopped;
  }
  return strategy;
}

/** The same error, or OutOfMemory if its text says so. @param {any} error */
function refined(error) {
  const mayBe = [RangeError, EngineError, WebAssembly.RuntimeError].some((kind) => error instanceof kind);
  if (!mayBe || !NO_MEMORY.test(String(error.message))) return error;
  return new OutOfMemory(`no more memory is available: ${error.message}`);
}
