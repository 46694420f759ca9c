/** Decides which task a device is in, and handles offers of that task and of others. Part of client/agent.py. */

import { same } from "./messages.js";
import { isSame } from "./offers.js";
import { OtherTasks } from "./other_tasks.js";

/** @typedef {import("./offers.js").OpenRound} OpenRound */

/** Seconds that a device without a task waits for another one after it hears of a task that is done. */
export const ANOTHER_S = 10;

/** Passes rounds of the device's task to `rounds`, and notes other tasks. */
export class TaskOffers {
  /** Whether the device's task is done. */
  done = false;
  #environment;
  #wanted;
  #rounds;
  #messages;
  #otherTasks = new OtherTasks();
  /** @type {{over: OpenRound, at: number} | null} */
  #past = null;
  /** The round of the last offer. */
  #heard = { run: "", round: 0 };
  /** The parts of the last offer's base. @type {any[]} */
  #base = [];

  /**
   * @param {any} environment see agent.js @param {string} wanted the task to join; empty: any
   * @param {{rounds: import("./duty.js").DeviceRounds, messages: import("./presence.js").DeviceMessages}} parts
   */
  constructor(environment, wanted, { rounds, messages }) {
    this.#environment = environment;
    this.#wanted = wanted;
    this.#rounds = rounds;
    this.#messages = messages;
    messages.task = wanted;
  }

  /** Whether it waits for another task, after it heard of one that is done. */
  get isLooking() {
    return this.#past !== null;
  }

  /**
   * Handle an offer to all devices. A retained offer only says that there is a task: a device learns the rest in
   * answer to its hello. If the offer was heard before, the aggregator has restarted and does not know which
   * devices are here: say hello again. A base that is new to all devices comes unasked to those that said they
   * are ready.
   * @param {OpenRound} heard @param {{retained: boolean, over: boolean}} how `over`: contributions to earlier rounds
   *   need not wait for a receipt any longer
   */
  async hear(heard, { retained, over }) {
    const { offer } = heard;
    if (!this.#concerns(offer)) return;
    if (retained && offer.done && !this.#messages.task) {
      this.#past ??= { over: heard, at: this.#environment.clock() + ANOTHER_S };
      return;
    }
    if (retained && !offer.done) return;
    const again = offer.round === 0 || isSame(offer, this.#heard);
    if (this.#rounds.ready && !offer.done) await this.#announceReady(offer, again);
    if (over) await this.#rounds.sending.over(offer.run, offer.round);
    await this.take(heard);
  }

  /**
   * Note the round; the newest replaces any other. In round 0 the device gets ready. A repeated offer that says
   * that a task it has left is done, in answer to an earlier hello, changes nothing. If two hellos are answered
   * with different tasks, the device is in the one answered last and notes the other.
   * @param {OpenRound} taken
   */
  async take(taken) {
    const { offer } = taken;
    const { task, run, round } = offer;
    if (offer.done && this.#messages.task && this.#messages.task !== task) {
      await this.#rounds.sending.drop(run);
      return;
    }
    this.#rounds.helloRetry.answered();
    if (!this.done && this.#messages.task && this.#messages.task !== task) this.#otherTasks.add(this.#messages.task);
    this.#otherTasks.discard(task);
    this.#messages.task = task;
    this.done = offer.done;
    this.#heard = { run, round };
    this.#base = offer.base.checkpoint;
    this.#rounds.open = offer.done ? null : taken;
    const { deadline_s: deadlineS, remaining_s: remainingS, done } = offer;
    this.#environment.tell({ type: "offer", task, run, round, deadlineS, remainingS, done });
    if (!done) return;
    this.#environment.log("info", `task '${task}' is done after round ${round}`);
    await this.#rounds.sending.drop(run);
    this.#rounds.finish(taken);
    this.#goToOtherTask();
  }

  /** Accept that its task was done before it came, if no other is offered in time: such an offer may be old. */
  async acceptDone() {
    if (!this.#past) return;
    if (this.#messages.task) {
      this.#past = null;
    } else if (this.#environment.clock() >= this.#past.at) {
      const { over } = this.#past;
      this.#past = null;
      await this.take(over);
    }
  }

  async #announceReady(/** @type {any} */ offer, /** @type {boolean} */ again) {
    if (again) {
      this.#rounds.hello();
      this.#rounds.sending.restart();
    } else if (offer.round > 1 && !offer.family.length && !offer.base.at) {
      for (const part of offer.base.checkpoint) {
        if (!this.#base.some((known) => same(known, part))) await this.#rounds.expect(part);
      }
    }
  }

  /**
   * Whether an offer to all is of this device's task. Another task is noted: a device whose settings name no task
   * goes on to it when its own is done.
   */
  #concerns(/** @type {any} */ { task, done }) {
    if (task === this.#messages.task || (!this.#messages.task && done)) return true;
    if (done) {
      this.#otherTasks.discard(task);
      return false;
    }
    this.#otherTasks.add(task);
    if (!this.#messages.task || this.done) this.#goToOtherTask();
    return task === this.#messages.task;
  }

  #goToOtherTask() {
    const next = this.#wanted ? "" : this.#otherTasks.take();
    if (!next) return;
    this.#messages.task = next;
    this.done = false;
    this.#environment.log("info", `going on to task '${next}'`);
    this.#rounds.hello();
  }
}
