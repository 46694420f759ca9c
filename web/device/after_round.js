/** Judges the model after a round, and after a task, on samples held out of training. Part of client/duty.py. */

import { DeviceError, RoundLeftOut, oneLine } from "./errors.js";

/** @typedef {import("./offers.js").OpenRound} OpenRound */

/** Seconds in which the final model of a task is fetched, to judge it. */
const FINAL_S = 60;

export class AfterRound {
  /** The run of the last task that was done. */
  finishedRun = "";
  #parts;
  /** @type {{over: OpenRound, until: number} | null} */
  #final = null;

  /**
   * `warn` is that of DeviceRounds.
   * @param {{backend: import("./in_process.js").InProcess, downloads: import("./downloads.js").Downloads,
   *   reporter: import("./event_reporter.js").EventReporter, warn: (text: string) => void}} parts
   */
  constructor(parts) {
    this.#parts = parts;
  }

  /** Whether the final model of a task is being fetched. */
  get finishing() {
    return this.#final !== null;
  }

  /** The task is done: fetch its final model once, if the task is known. @param {OpenRound} over @param {number} now */
  finish(over, now) {
    const { run } = over.offer;
    if (this.finishedRun !== run && this.#parts.backend.isOf(over.offer)) this.#final = { over, until: now + FINAL_S };
    this.finishedRun = run;
  }

  /** Another round is open: stop fetching the final model of the last task. */
  drop() {
    this.#final = null;
  }

  /** Fetch and judge the final model. Once it is judged or cannot be had, the task is finished. @param {number} now */
  async fetchFinal(now) {
    if (!this.#final) return;
    const { backend, downloads, reporter, warn } = this.#parts;
    const { over, until } = this.#final;
    const { task, round } = over.offer;
    try {
      const missing = await backend.preview(over);
      if (!missing.length) reporter.judged(round, await backend.judge(over));
      else if (now < until && (await downloads.advance(missing, now))) return;
      else warn(`the model of task '${task}' has not come in time`);
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      warn(`the model of task '${task}' is not judged: ${oneLine(error)}`);
      if (now < until && !(error instanceof RoundLeftOut)) return;
    }
    this.#final = null;
  }

  /** Judge the model that this round began with. @param {OpenRound} current */
  async judge(current) {
    const { backend, reporter, warn } = this.#parts;
    const { round } = current.offer;
    try {
      reporter.judged(round - 1, await backend.judge(current));
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      warn(`the model of round ${round} is not judged: ${oneLine(error)}`);
    }
  }
}
