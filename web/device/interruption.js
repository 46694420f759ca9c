/**
 * Handles messages during work, pauses it while the work gate is closed, and ends it at a stop request. Part of
 * client/duty.py.
 */

import { WorkStopped } from "./errors.js";
import { isSame } from "./offers.js";
import { percent } from "./rounding.js";
import { ClosedWhilePaused } from "./work.js";

/** Seconds between looks at whether paused work may go on. */
const LOOK_S = 1;
/** Seconds of work between looks at the outbox. */
const SEND_S = 1;

/** Interrupts the work of `rounds`, by the work gate `gate`. `hear` handles messages, waiting for one so long. */
export class Interruption {
  isStopped = false;
  #gate;
  #rounds;
  #hear;
  #share = 0;
  #sentS = 0;
  /** Calls of `between` that wait for the next step. @type {(() => Promise<void>)[]} */
  #others = [];

  /**
   * @param {import("./work_gate.js").WorkGate} gate @param {import("./duty.js").DeviceRounds} rounds
   * @param {(seconds: number) => Promise<void>} hear
   */
  constructor(gate, rounds, hear) {
    this.#gate = gate;
    this.#rounds = rounds;
    this.#hear = hear;
  }

  /**
   * Do `work` between two steps of the round's work, in turn. @template T @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  between(work) {
    return new Promise((resolve, reject) => {
      this.#others.push(() => work().then(resolve, reject));
    });
  }

  /** Do what `between` was asked for. */
  async others() {
    for (let next = this.#others.shift(); next; next = this.#others.shift()) await next();
  }

  /**
   * Called between steps of the work, of which the share `done` (0 to 1) is done: handles messages, sends, and waits
   * while the gate is closed. Throws WorkStopped when the device is to stop, when the task is done, or when paused work
   * is not wanted any more; ClosedWhilePaused when the round closed during the pause. @param {number} done
   */
  async progress(done) {
    this.#share = done;
    this.#rounds.reporter.progressed(done);
    await this.#hear(0);
    await this.others();
    this.#checkStop();
    await this.#send();
    if (this.#gate.open || !this.#rounds.working) return;
    await this.#gate.held(async () => {
      while (!this.#gate.open) {
        await this.#rounds.standBy();
        await this.#hear(LOOK_S);
        await this.others();
        this.#checkStop();
        this.#stillWanted();
      }
    });
    this.#rounds.resume();
  }

  async #send() {
    const now = this.#gate.clock();
    if (now - this.#sentS < SEND_S) return;
    this.#sentS = now;
    if (!this.#gate.quiet) await this.#rounds.sending.due(now);
  }

  #checkStop() {
    const { working, finishedRun } = this.#rounds;
    const done = percent(this.#share);
    if (this.isStopped) throw new WorkStopped(`stopped with ${done} of an update done: it is not sent`);
    if (working?.offer.run === finishedRun) throw new WorkStopped(`the task is over, with ${done} of an update`);
  }

  /** Check that the paused work may go on later. Throws as `progress` does. */
  #stillWanted() {
    const { open, working } = this.#rounds;
    const { offer: mine } = working;
    if (!open || !isSame(open.offer, mine)) {
      throw new WorkStopped(`round ${mine.round} given up, ${percent(this.#share)} done: ${this.#gate.reason}`);
    }
    if (this.#gate.clock() >= open.closes) {
      throw new ClosedWhilePaused(`${percent(this.#share)} done when the round closed; ${this.#gate.reason}`);
    }
  }
}
