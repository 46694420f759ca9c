/** Which task a device is in, and what an offer of that, or of another, means for it: of client/agent.py. */

import { Elsewhere } from "./other_tasks.js";
import { same } from "./messages.js";
import { isSame } from "./offers.js";

/** @typedef {import("./offers.js").Open} Open */

/** Seconds in which a device that finds a task over, and is in none, looks out for another. */
export const ANOTHER_S = 10;

/** What is heard of tasks and their rounds, for what `duty` has to do. */
export class Attending {
  /** Whether the task that it is in is over. */
  done = false;
  #environment;
  #wanted;
  #duty;
  #voice;
  #elsewhere = new Elsewhere();
  /** @type {{over: Open, at: number} | null} */
  #over = null;
  /** The round that was told last. */
  #heard = { run: "", round: 0 };
  /** Of the last offer. @type {any[]} */
  #base = [];

  /**
   * @param {any} environment see agent.js @param {string} wanted the task that it is here for, or empty
   * @param {{duty: import("./duty.js").Duty, voice: import("./presence.js").Voice}} parts
   */
  constructor(environment, wanted, { duty, voice }) {
    this.#environment = environment;
    this.#wanted = wanted;
    this.#duty = duty;
    this.#voice = voice;
    voice.task = wanted;
  }

  /** Whether it looks out for another task than one that is over. */
  get isLooking() {
    return this.#over !== null;
  }

  /**
   * The offer to all. A retained one only says that there is a task: what remains is told after hello. One
   * that was heard before comes from an aggregator that has restarted, and does not know who is here. A base
   * that is new to all is on its way to those who said that they are ready, unasked.
   * @param {Open} heard @param {{retained: boolean, over: boolean}} how `over`: what is unreceipted of earlier
   *   rounds has nothing to wait for
   */
  async hear(heard, { retained, over }) {
    const { offer } = heard;
    if (!this.#concerns(offer)) return;
    if (retained && offer.done && !this.#voice.task) {
      this.#over ??= { over: heard, at: this.#environment.clock() + ANOTHER_S };
      return;
    }
    if (retained && !offer.done) return;
    const again = offer.round === 0 || isSame(offer, this.#heard);
    if (this.#duty.ready && !offer.done) await this.#isReady(offer, again);
    if (over) await this.#duty.sending.over(offer.run, offer.round);
    await this.take(heard);
  }

  /**
   * Note the round; the newest replaces any other. Round 0 is the lobby: get ready. That a task is over which
   * it has left, said again in answer to an earlier hello, changes nothing. Where a hello to any task and one to the
   * task it has gone to since are both answered, it is in the one of these, and the other waits.
   * @param {Open} taken
   */
  async take(taken) {
    const { offer } = taken;
    const { task, run, round } = offer;
    if (offer.done && this.#voice.task && this.#voice.task !== task) {
      await this.#duty.sending.drop(run);
      return;
    }
    this.#duty.greeting.answered();
    if (!this.done && this.#voice.task && this.#voice.task !== task) this.#elsewhere.add(this.#voice.task);
    this.#elsewhere.delete(task);
    this.#voice.task = task;
    this.done = offer.done;
    this.#heard = { run, round };
    this.#base = offer.base.checkpoint;
    this.#duty.open = offer.done ? null : taken;
    const { deadline_s: deadlineS, remaining_s: remainingS, done } = offer;
    this.#environment.tell({ type: "offer", task, run, round, deadlineS, remainingS, done });
    if (!done) return;
    this.#environment.log("info", `task '${task}' is done after round ${round}`);
    await this.#duty.sending.drop(run);
    this.#duty.finish(taken);
    this.#goElsewhere();
  }

  /** That a task was over before we came may be old: it is taken to be ours where no other comes. */
  async believe() {
    if (!this.#over) return;
    if (this.#voice.task) {
      this.#over = null;
    } else if (this.#environment.clock() >= this.#over.at) {
      const { over } = this.#over;
      this.#over = null;
      await this.take(over);
    }
  }

  async #isReady(/** @type {any} */ offer, /** @type {boolean} */ again) {
    if (again) {
      this.#duty.hello();
      this.#duty.sending.restart();
    } else if (offer.round > 1 && !offer.family.length && !offer.base.at) {
      for (const part of offer.base.checkpoint) {
        if (!this.#base.some((known) => same(known, part))) await this.#duty.expect(part);
      }
    }
  }

  /**
   * Whether an offer to all is of the task in hand. Another task is noted: a device that was not told which
   * to be in goes there when its own is over.
   */
  #concerns(/** @type {any} */ { task, done }) {
    if (task === this.#voice.task || (!this.#voice.task && done)) return true;
    if (done) {
      this.#elsewhere.delete(task);
      return false;
    }
    this.#elsewhere.add(task);
    if (!this.#voice.task || this.done) this.#goElsewhere();
    return task === this.#voice.task;
  }

  #goElsewhere() {
    const next = this.#wanted ? "" : this.#elsewhere.take();
    if (!next) return;
    this.#voice.task = next;
    this.done = false;
    this.#environment.log("info", `going on to task '${next}'`);
    this.#duty.hello();
  }
}
