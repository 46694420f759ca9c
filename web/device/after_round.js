/**
 * What there is to do after a round, and after a task: the model that came is judged on samples kept out. Of
 * client/duty.py.
 */

import { DeviceError, LeftOut, oneLine } from "./errors.js";

/** @typedef {import("./offers.js").Open} Open */

/** Seconds in which the model of a task that is done is fetched, to be judged. */
const FINAL_S = 60;

export class Afterwards {
  /** The run of the last task that was done. */
  over = "";
  #parts;
  /** @type {{over: Open, until: number} | null} */
  #final = null;

  /**
   * `warn` is Duty's. @param {{place: import("./in_process.js").Here, downloads: import("./downloads.js").Downloads,
   *   telling: import("./telling.js").Telling, warn: (text: string) => void}} parts
   */
  constructor(parts) {
    this.#parts = parts;
  }

  /** Whether the model of a task that is done is on its way. */
  get finishing() {
    return this.#final !== null;
  }

  /** The task is done: what came of it is fetched, once, if the task is known. @param {Open} over @param {number} now */
  finish(over, now) {
    const { run } = over.offer;
    if (this.over !== run && this.#parts.place.isOf(over.offer)) this.#final = { over, until: now + FINAL_S };
    this.over = run;
  }

  /** Another round is open: the model of the task before is not fetched. */
  drop() {
    this.#final = null;
  }

  /** Once it is judged, or cannot be had, there is nothing more to do in this task. @param {number} now */
  async fetchFinal(now) {
    if (!this.#final) return;
    const { place, downloads, telling, warn } = this.#parts;
    const { over, until } = this.#final;
    const { task, round } = over.offer;
    try {
      const missing = await place.look(over);
      if (!missing.length) telling.judged(round, await place.judge(over));
      else if (now < until && (await downloads.advance(missing, now))) return;
      else warn(`the model of task '${task}' has not come in time`);
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      warn(`the model of task '${task}' is not judged: ${oneLine(error)}`);
      if (now < until && !(error instanceof LeftOut)) return;
    }
    this.#final = null;
  }

  /** How well the model does that this round began with. @param {Open} current */
  async judge(current) {
    const { place, telling, warn } = this.#parts;
    const { round } = current.offer;
    try {
      telling.judged(round - 1, await place.judge(current));
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      warn(`the model of round ${round} is not judged: ${oneLine(error)}`);
    }
  }
}
