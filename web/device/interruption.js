/**
 * Work as it goes on: what comes meanwhile is heard; it stands still while it may not be done, and may end.
 */

import { Stopped } from "./errors.js";
import { isSame } from "./offers.js";
import { percent } from "./rounding.js";
import { HeldUp } from "./work.js";

/** Seconds between looks at whether work that stands still may go on. */
const LOOK_S = 1;
/** Seconds of work between looks at what waits to be sent. */
const SEND_S = 1;

/** Of what `duty` does, in its `hours`. `hear` takes what comes within so many seconds. */
export class Going {
  isStopped = false;
  #hours;
  #duty;
  #hear;
  #share = 0;
  #sentS = 0;
  /** What others want of the model, between two steps. @type {(() => Promise<void>)[]} */
  #others = [];

  /**
   * @param {import("./work_gate.js").Hours} hours @param {import("./duty.js").Duty} duty
   * @param {(seconds: number) => Promise<void>} hear
   */
  constructor(hours, duty, hear) {
    this.#hours = hours;
    this.#duty = duty;
    this.#hear = hear;
  }

  /**
   * Done between two steps of the work, in turn. @template T @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  between(work) {
    return new Promise((resolve, reject) => {
      this.#others.push(() => work().then(resolve, reject));
    });
  }

  /** What others asked for. */
  async others() {
    for (let next = this.#others.shift(); next; next = this.#others.shift()) await next();
  }

  /**
   * Called between steps of the work, so much of which is done, from 0 to 1. Throws Stopped when the device
   * is to stop, the task is done, or work that stood still is not wanted any more; HeldUp when its round
   * closed while it stood still. @param {number} done
   */
  async progress(done) {
    this.#share = done;
    this.#duty.telling.progressed(done);
    await this.#hear(0);
    await this.others();
    this.#heedStop();
    await this.#send();
    if (this.#hours.open || !this.#duty.working) return;
    await this.#hours.held(async () => {
      while (!this.#hours.open) {
        await this.#duty.standBy();
        await this.#hear(LOOK_S);
        await this.others();
        this.#heedStop();
        this.#stillWanted();
      }
    });
    this.#duty.resume();
  }

  async #send() {
    const now = this.#hours.clock();
    if (now - this.#sentS < SEND_S) return;
    this.#sentS = now;
    if (!this.#hours.quiet) await this.#duty.sending.due(now);
  }

  #heedStop() {
    const { working, over } = this.#duty;
    const done = percent(this.#share);
    if (this.isStopped) throw new Stopped(`stopped with ${done} of an update done: it is not sent`);
    if (working?.offer.run === over) throw new Stopped(`the task is over, with ${done} of an update`);
  }

  /** Whether work that stands still is to go on one day. */
  #stillWanted() {
    const { open, working } = this.#duty;
    const { offer: mine } = working;
    if (!open || !isSame(open.offer, mine)) {
      throw new Stopped(`round ${mine.round} given up, ${percent(this.#share)} done: ${this.#hours.reason}`);
    }
    if (this.#hours.clock() >= open.closes) {
      throw new HeldUp(`${percent(this.#share)} done when the round closed; ${this.#hours.reason}`);
    }
  }
}
