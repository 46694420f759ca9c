/**
 * What a device has to do: fetch what an open round needs, work on it, answer, send until it is receipted.
 */

import { Downloads } from "./downloads.js";
import { BlobError, DeviceError, DiskError, LeftOut, StaleBase, oneLine } from "./errors.js";
import { Greeting } from "./greeting.js";
import { Here } from "./here.js";
import { LinkSpeed } from "./link_speed.js";
import { isSame } from "./offers.js";
import { Sending } from "./sending.js";
import { Standing } from "./standing.js";
import { Telling } from "./telling.js";
import { answer } from "./transfer.js";
import { isWhole } from "./messages.js";

/** @typedef {import("./offers.js").Open} Open */

/** Seconds in which the model of a task that is done is fetched, to be judged. */
const FINAL_S = 60;

/** The round in hand (`open`), where it is worked on (`place`), what was sent. */
export class Duty {
  /** @type {Open | null} */
  open = null;
  /** The one that is being worked on. @type {Open | null} */
  working = null;
  /** The run of the last task that was done. */
  over = "";
  #environment;
  #hours;
  #voice;
  #standing;
  #downloads;
  #link = new LinkSpeed();
  #readyFor = "";
  /** @type {{of: Open, missing: any[]} | null} */
  #seen = null;
  /** @type {any} */
  #pruned = null;
  /** The round that was worked on, until its model is judged. @type {Open | null} */
  #workedOn = null;
  /** @type {{over: Open, until: number} | null} */
  #final = null;
  #answered = { run: "", round: 0 };
  #warned = "";

  /**
   * @param {any} environment see agent.js @param {{hours: import("./hours.js").Hours,
   *   voice: import("./speaking.js").Voice, blobs: any, outbox: any}} parts
   */
  constructor(environment, { hours, voice, blobs, outbox }) {
    const { log } = environment;
    this.#environment = environment;
    this.#hours = hours;
    this.#voice = voice;
    this.blobs = blobs;
    this.outbox = outbox;
    this.sending = new Sending(outbox, voice, log);
    this.greeting = new Greeting(() => voice.underWay("hello"));
    this.#standing = new Standing(hours, voice);
    const arrived = (/** @type {any} */ blob, /** @type {number} */ seconds) => this.#arrived(blob, seconds);
    this.#downloads = new Downloads(blobs, { ask: (get) => voice.ask(get), arrived, log });
    this.telling = new Telling(environment.tell, hours.clock);
    this.place = new Here(environment, blobs, this.#link);
  }

  /** Whether the task is known here: its bundle has come, and the samples are read. */
  get ready() {
    return this.place.task !== null;
  }

  /** Whether the model of a task that is done is on its way. */
  get finishing() {
    return this.#final !== null;
  }

  /**
   * Do what is to be done now, training included. Throws Stopped, and what nobody expected.
   * @param {(done: number) => Promise<void>} progress told of training, from 0 to 1
   */
  async due(progress) {
    const now = this.#hours.clock();
    if (!this.#hours.open) {
      await this.standBy();
      return;
    }
    this.resume();
    await this.sending.due(now);
    if (this.greeting.due(now)) this.hello();
    if (this.open) {
      this.#final = null;
      await this.#onward(this.open, now, progress);
    } else if (this.#final) {
      await this.#fetchFinal(this.#final, now);
    } else if (this.#workedOn) {
      await this.#after(this.#workedOn);
    }
  }

  /** The task is done: what came of it is fetched and judged, if the task is known. @param {Open} over */
  finish(over) {
    const until = this.#hours.clock() + FINAL_S;
    this.over = over.offer.run;
    if (this.ready && this.place.isOf(over.offer)) this.#final = { over, until };
  }

  /** While no work may be done: say so, be there, send what waits unless the link is to be spared. */
  async standBy() {
    const now = this.#hours.clock();
    const offer = this.open?.offer;
    this.#standing.pause(offer && !this.#hasAnswered(offer) ? offer : null);
    if (!this.#hours.quiet) await this.sending.due(now);
    if (this.greeting.due(now)) this.hello();
  }

  /** Work may be done again; a round that has closed in the meantime is not begun. */
  resume() {
    if (!this.#standing.resume()) return;
    if (this.open && this.open.closes <= this.#hours.clock()) this.open = null;
    this.hello();
  }

  /** Who is here, and with what. */
  hello() {
    this.greeting.said(this.#hours.clock());
    this.#voice.hello(this.place.hello(this.#voice.boot));
    this.#standing.greeted();
  }

  /** The link was down. */
  restart() {
    this.#downloads.restart();
    this.sending.restart();
  }

  /** The first blocks of this come unasked. @param {any} blob */
  async expect(blob) {
    await this.#downloads.expect(blob, this.#hours.clock());
  }

  /** A block came. @param {Uint8Array} sha @param {number} index @param {Uint8Array} data */
  async block(sha, index, data) {
    await this.#downloads.received(sha, index, data, this.#hours.clock());
    this.telling.received(data.length);
  }

  /**
   * Blocks are asked for; where the link is to be spared they have to be asked for again. @param {any} get
   */
  async answer(get) {
    if (this.#hours.quiet) return;
    for await (const { index, data } of answer(this.blobs, get)) this.#voice.block(get.blob.sha, index, data);
  }

  /** A contribution has its receipt. @param {any} receipt */
  async settle(receipt) {
    const message = this.outbox.answering(receipt);
    const counts = receipt.status === "accepted" || receipt.status === "duplicate";
    if (message) await this.place.settle(message, counts);
    const settled = await this.sending.settle(receipt, this.#hours.clock());
    if (!settled) return;
    this.#link.sawUp(settled.bytes, settled.seconds);
    this.telling.receipted(receipt, settled.message.kind);
  }

  /**
   * Once, however often it comes in a row: what is tried at each tick may fail at each. @param {string} text
   */
  warn(text) {
    if (text !== this.#warned) this.#environment.log("warning", text);
    this.#warned = text;
  }

  async #onward(/** @type {Open} */ current, /** @type {number} */ now, /** @type {any} */ progress) {
    const { round } = current.offer;
    try {
      const missing = await this.#look(current);
      if (!(await this.#downloads.advance(missing, now))) this.#leave(current);
      else if (!missing.length) await this.#work(current, progress);
    } catch (error) {
      if (error instanceof LeftOut) {
        this.#environment.log("warning", `round ${round} left out: ${error.message}`);
        this.#leave(current);
        return;
      }
      if (!(error instanceof BlobError || error instanceof StaleBase)) {
        this.#leave(current);
        throw error;
      }
      this.#seen = null;
      this.warn(`round ${round}: ${error.message}`);
      if (error instanceof StaleBase && !isWhole(current.offer.base)) {
        this.#leave(current);
        this.hello(); // for the whole offer, which names all that leads there
      }
    }
  }

  /** Done with a round, unless another has come meanwhile. */
  #leave(/** @type {Open} */ current) {
    if (this.open === current) this.open = null;
  }

  /** What is missing for it; looked at again when something has come. */
  async #look(/** @type {Open} */ current) {
    if (this.#seen?.of === current) return this.#seen.missing;
    let missing;
    try {
      missing = await this.place.look(current);
    } finally {
      if (this.ready && this.place.bundle !== this.#readyFor) {
        this.#readyFor = this.place.bundle;
        this.#workedOn = null;
        this.hello();
      }
    }
    this.#seen = { of: current, missing };
    const { run, round } = current.offer;
    this.telling.missing(`${run} ${round}`, missing);
    return missing;
  }

  async #work(/** @type {Open} */ current, /** @type {any} */ progress) {
    const { offer } = current;
    await this.place.prepare(current);
    if (this.#pruned !== offer) {
      await this.#downloads.prune(offer, [...this.outbox].map((message) => message.blob));
      this.#pruned = offer;
    }
    if (offer.round > 0 && !this.#hasAnswered(offer)) {
      const waiting = (/** @type {string} */ run) =>
        new Set([...this.outbox].filter((message) => message.run === run).map((message) => message.round));
      this.working = current;
      try {
        await this.place.work(current, {
          progress,
          lost: () => this.#hours.lost(),
          decided: (of, plan, decision) => this.#decided(of, plan, decision),
          made: (made) => this.#made(made),
          waiting,
        });
      } finally {
        this.working = null;
      }
      this.#workedOn = current;
    }
    this.#leave(current);
  }

  async #after(/** @type {Open} */ current) {
    this.#workedOn = null;
    try {
      this.telling.judged(current.offer.round - 1, await this.place.judge(current));
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      this.warn(`the model of round ${current.offer.round} is not judged: ${oneLine(error)}`);
    }
  }

  /** Whether this round was worked on already, in this life or an earlier one. @param {any} offer */
  #hasAnswered(offer) {
    return isSame(offer, this.#answered) || this.outbox.answered(offer.run, offer.round);
  }

  /** Tell what is tried now, so that the word travels while the device computes. */
  #decided(/** @type {any} */ offer, /** @type {any} */ plan, /** @type {any} */ decision) {
    this.#standing.plan(plan, decision.roomBytes);
    this.telling.decided(offer.round, decision);
  }

  /** Keep and send what came of a round's work. After that it is not done again. */
  async #made(/** @type {import("./here.js").Made} */ made) {
    const { log } = this.#environment;
    const { run, round, message, trouble } = made;
    if (!message && !trouble) {
      log("warning", `round ${round}: sitting out: ${made.reasons.join("; ")}`);
      return;
    }
    this.#answered = { run, round };
    if (!message) {
      log("warning", `round ${round} left out: ${trouble}`);
      return;
    }
    try {
      await this.sending.keep(message);
    } catch (error) {
      if (!(error instanceof BlobError || error instanceof DiskError)) throw error;
      log("warning", `round ${round} left out: its contribution cannot be kept: ${oneLine(error)}`);
      return;
    }
    this.telling.made(made);
    await this.sending.due(this.#hours.clock());
  }

  /** Once it is judged, or cannot be had, there is nothing more to do in this task. */
  async #fetchFinal(/** @type {{over: Open, until: number}} */ { over, until }, /** @type {number} */ now) {
    try {
      const missing = await this.place.look(over);
      if (missing.length && now < until && (await this.#downloads.advance(missing, now))) return;
      if (!missing.length) this.telling.judged(over.offer.round, await this.place.judge(over));
    } catch (error) {
      if (!(error instanceof DeviceError)) throw error;
      this.warn(`the model of task ${over.offer.task} is not judged: ${oneLine(error)}`);
      if (now < until && !(error instanceof LeftOut)) return;
    }
    this.#final = this.#workedOn = null;
  }

  #arrived(/** @type {any} */ blob, /** @type {number} */ seconds) {
    this.#link.sawDown(blob.size, seconds);
    this.#seen = null;
  }
}
