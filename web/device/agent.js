/** The device's main loop: what comes over the link, and its turn to do what is due. */

import { Blobs } from "./blobs.js";
import { Duty } from "./duty.js";
import { BlobError, DiskError, LostTrack, MessageError, Stopped, TopicError, oneLine } from "./errors.js";
import { Following } from "./following.js";
import { Going } from "./going.js";
import { Hours } from "./hours.js";
import { Inbox } from "./inbox.js";
import { Get, Receipt, decode, same } from "./messages.js";
import { isSame, opened } from "./offers.js";
import { Outbox } from "./outbox.js";
import { isNext } from "./packets.js";
import { Voice } from "./speaking.js";
import * as topics from "./topics.js";
import { Trust } from "./trust.js";

/** @typedef {import("./offers.js").Open} Open */
/**
 * What surrounds a device. `clock` in seconds, of one that only goes forward; `disk` as in disk.js; `open`
 * puts a bundle on an engine; `samples` gives the labelled samples for a manifest, {training(), held()}, each
 * LocalData, and {count()}, how many are trained on; `host` as in profile.js; `tell` is given what happens,
 * see telling.js.
 * @typedef {{clock: () => number, disk: import("./disk.js").Disk, open: (bundle: any) => Promise<any>,
 *   samples: (manifest: any) => Promise<any>, host: import("./profile.js").Host,
 *   tell: (event: import("./telling.js").Happening) => void}} Environment
 *
 * How it takes part: its name, the aggregator's public key (empty: any aggregator's offers count), the task
 * that it is here for (empty: whichever there is).
 * @typedef {{name: string, key?: Uint8Array, task?: string}} Settings
 */

/** Seconds between looks at what is due, while nothing comes in. */
const TICK_S = 0.1;
/** And while nothing can fall due but what its owner says. */
const IDLE_S = 1;
/** Seconds in which a device that finds a task over, and is in none, looks out for another. */
const ANOTHER_S = 10;

/**
 * One life of one device, made by `Agent.open`. Make the link with its `will`, `greeting`, `subscriptions`.
 */
export class Agent {
  /** Whether the task that it is in is over. */
  done = false;
  #environment;
  #settings;
  #duty;
  #going;
  #voice;
  #following;
  #inbox;
  /** @type {{over: Open, at: number} | null} */
  #over = null;
  /** Other tasks that are not over. @type {Set<string>} */
  #elsewhere = new Set();
  #heard = { run: "", round: 0 };
  /** Of the last offer. @type {any[]} */
  #base = [];

  /**
   * With what an earlier life left on the disk. @param {Settings} settings @param {Environment} environment
   */
  static async open(settings, environment) {
    const { disk, tell } = environment;
    /** @param {any} level @param {string} text */
    const log = (level, text) => tell({ type: "log", level, text });
    const trust = await Trust.open(settings.key ?? new Uint8Array());
    const parts = { blobs: await Blobs.open(disk), outbox: await Outbox.open(disk, log), trust };
    return new Agent(settings, { ...environment, log }, parts);
  }

  /** @private @param {Settings} settings @param {any} environment @param {any} parts */
  constructor(settings, environment, { blobs, outbox, trust }) {
    const hours = new Hours(environment.clock);
    const voice = new Voice(settings.name, drawnBoot());
    const around = { ...environment, name: settings.name, clock: () => hours.worked() };
    this.#environment = environment;
    this.#settings = settings;
    this.#inbox = new Inbox(environment.clock);
    this.#duty = new Duty(around, { hours, voice, blobs, outbox });
    this.#going = new Going(hours, this.#duty, (seconds) => this.#hear(seconds));
    this.#voice = voice;
    this.#voice.task = settings.task ?? "";
    this.#voice.key = trust.key;
    this.#following = new Following(trust);
    /** The owner's word: `pause` and `resume` with a reason. */
    this.hours = hours;
  }

  /** What the broker says for us when we vanish. */
  get will() {
    return this.#voice.presence(false);
  }

  /** What we say when we leave. */
  get farewell() {
    return this.#voice.presence(false, true);
  }

  /** What the link says for us whenever it has the broker, though we may be busy. */
  get greeting() {
    return this.#voice.presence(true);
  }

  get subscriptions() {
    const { name, task } = this.#settings;
    return [task ? topics.offer(task) : topics.OFFERS, topics.down(name, "#")];
  }

  /** Whether the task is done, everything is receipted, and its model judged. */
  get finished() {
    const { outbox, finishing } = this.#duty;
    return this.done && this.#inbox.isEmpty && !outbox.size && !finishing;
  }

  /** What the link reports; see link.js. @param {any} event */
  took(event) {
    this.#inbox.put(event);
  }

  /** What it speaks through from now on. @param {import("./speaking.js").Wire} link */
  begin(link) {
    this.#voice.link = link;
  }

  /** Work until stopped or, with `untilDone`, until finished. @param {{untilDone?: boolean}} [until] */
  async run({ untilDone = false } = {}) {
    while (!this.#going.isStopped && !(untilDone && this.finished)) {
      await this.step(this.#isWaiting ? TICK_S : IDLE_S);
    }
    await this.#duty.place.close();
  }

  /** Whether something may fall due though nothing comes in. */
  get #isWaiting() {
    const { open, outbox, finishing, greeting } = this.#duty;
    return open !== null || outbox.size > 0 || finishing || greeting.waiting || this.#over !== null;
  }

  /** End `run` soon; work that is being done is given up, and goes on in another life. */
  stop() {
    this.#going.isStopped = true;
    this.#inbox.wake();
  }

  /** Samples have come or gone: say who is here now. */
  samplesChanged() {
    if (this.#duty.ready) this.#duty.hello();
  }

  /**
   * Logits (n, classes) of the newest model that was worked with, between two steps of what is being done;
   * null where there is none yet. @param {Float32Array} x prepared samples, (n, *input)
   */
  predict(x) {
    const answer = this.#going.between(() => this.#duty.place.predict(x));
    this.#inbox.wake();
    return answer;
  }

  /** Take what has come, and do what is due; waits up to `timeout` seconds for something to come. */
  async step(timeout = 0) {
    await this.#hear(timeout);
    this.#duty.telling.traffic(this.#voice.link);
    try {
      await this.#going.others();
      await this.#believe();
      await this.#duty.due((done) => this.#going.progress(done));
    } catch (error) {
      this.#excuse(error);
    }
  }

  /** What was not foreseen ends a round, and is said with its place; never the device. @param {any} error */
  #excuse(error) {
    const place = String(error?.stack).split("\n")[1]?.trim();
    if (error instanceof BlobError || error instanceof DiskError) this.#duty.warn(error.message);
    else if (error instanceof Stopped) this.#environment.log("info", error.message);
    else this.#duty.warn(`this is a fault: ${oneLine(error)}; ${place}`);
  }

  /** Take all that has come. What cannot be meant ends nothing. @param {number} timeout */
  async #hear(timeout) {
    await this.#inbox.wait(timeout);
    for (let next = this.#inbox.next(); next; next = this.#inbox.next()) {
      try {
        await this.#handle(next.event, next.came);
      } catch (error) {
        if (error instanceof LostTrack) this.#askAnew(error);
        else if (!(error instanceof MessageError || error instanceof TopicError)) this.#excuse(error);
        else this.#environment.log("warning", `ignored: ${oneLine(error)}`);
      }
    }
  }

  async #handle(/** @type {any} */ event, /** @type {number} */ came) {
    const { log, tell } = this.#environment;
    if (event.kind === "connected") {
      log("info", `connected${event.first ? "" : " again"}`);
      tell({ type: "link", connected: true, reason: "" });
      this.#duty.restart();
      this.#duty.hello();
    } else if (event.kind === "disconnected") {
      log("warning", `disconnected: ${event.reason}`);
      tell({ type: "link", connected: false, reason: event.reason });
    } else {
      await this.#receive(event, came);
    }
  }

  async #receive(/** @type {any} */ { topic, payload, retain }, /** @type {number} */ came) {
    const said = { topic, payload, retain };
    if (topics.isOffer(topic)) {
      if (!this.#isElsewhere(topic, payload)) await this.#hearOf(await this.#opened(said, came), retain);
      return;
    }
    const { leaf, sha, index } = topics.parse(topic);
    if (leaf === "task") await this.#take(await this.#opened(said, came));
    else if (leaf === "n") await this.#hearOf(await this.#opened(said, came), false);
    else if (leaf === "receipt") await this.#duty.settle(decode(Receipt, payload));
    else if (leaf === "get") await this.#duty.answer(decode(Get, payload));
    else if (leaf === "block") await this.#duty.block(sha, index, payload);
  }

  async #opened(/** @type {any} */ { topic, payload, retain }, /** @type {number} */ came) {
    return opened(await this.#following.offer(topic, payload, retain, this.#voice.task), came);
  }

  /** Whether this is the next round of a task that the device is not in. */
  #isElsewhere(/** @type {string} */ topic, /** @type {Uint8Array} */ payload) {
    return isNext(payload) && topic !== topics.offer(this.#voice.task);
  }

  /** For the whole offer, unless that is asked for already. */
  #askAnew(/** @type {Error} */ lost) {
    if (this.#duty.greeting.waiting) return;
    this.#environment.log("info", lost.message);
    this.#duty.hello();
  }

  /**
   * The offer to all. A retained one only says that there is a task: what remains is told after hello. One
   * that was heard before comes from an aggregator that has restarted, and does not know who is here. A base
   * that is new to all is on its way to those who said that they are ready, unasked.
   */
  async #hearOf(/** @type {Open} */ heard, /** @type {boolean} */ retained) {
    const { offer } = heard;
    if (!this.#concerns(offer)) return;
    if (retained && offer.done && !this.#voice.task) {
      this.#over ??= { over: heard, at: this.#environment.clock() + ANOTHER_S };
      return;
    }
    if (retained && !offer.done) return;
    const again = offer.round === 0 || isSame(offer, this.#heard);
    if (this.#duty.ready && !offer.done) await this.#isReady(offer, again);
    if (this.#following.over) await this.#duty.sending.over(offer.run, offer.round);
    await this.#take(heard);
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
   * Note the round; the newest replaces any other. Round 0 is the lobby: get ready. That a task is over which
   * it has left, said again in answer to an earlier hello, changes nothing.
   */
  async #take(/** @type {Open} */ taken) {
    const { offer } = taken;
    const { task, run, round } = offer;
    if (offer.done && this.#voice.task && this.#voice.task !== task) {
      await this.#duty.sending.drop(run);
      return;
    }
    this.#duty.greeting.answered();
    this.#voice.task = task;
    this.done = offer.done;
    this.#heard = { run, round };
    this.#base = offer.base.checkpoint;
    this.#duty.open = offer.done ? null : taken;
    const { deadline_s: deadlineS, remaining_s: remainingS, done } = offer;
    this.#environment.tell({ type: "offer", task, run, round, deadlineS, remainingS, done });
    if (!done) return;
    this.#environment.log("info", `task ${task} is done after round ${round}`);
    await this.#duty.sending.drop(run);
    this.#duty.finish(taken);
    this.#goElsewhere();
  }

  /** That a task was over before we came may be old: it is taken to be ours where no other comes. */
  async #believe() {
    if (!this.#over) return;
    if (this.#voice.task) {
      this.#over = null;
    } else if (this.#environment.clock() >= this.#over.at) {
      const { over } = this.#over;
      this.#over = null;
      await this.#take(over);
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
    if (!this.#elsewhere.size || this.#settings.task) return;
    const [first] = [...this.#elsewhere].sort();
    this.#voice.task = first;
    this.#elsewhere.delete(first);
    this.done = false;
    this.#environment.log("info", `on to task ${first}`);
    this.#duty.hello();
  }
}

/** Drawn anew in each life, so that the will of an earlier one is known: 63 bits. @returns {bigint} */
function drawnBoot() {
  return crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n;
}
