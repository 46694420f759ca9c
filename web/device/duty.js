/**
 * What a device has to do: fetch what an open round needs, work on it, answer, send until it is receipted.
 */

import { Advancing } from "./advancing.js";
import { Afterwards } from "./after_round.js";
import { Downloads } from "./downloads.js";
import { oneLine } from "./errors.js";
import { Greeting } from "./hello_retry.js";
import { Here } from "./in_process.js";
import { LinkSpeed } from "./link_speed.js";
import { Sending } from "./sending.js";
import { Standing } from "./pause_notice.js";
import { Telling } from "./telling.js";
import { answer } from "./transfer.js";

/** @typedef {import("./offers.js").Open} Open */

/** Of what is left of an open round, for the model of the one before. */
const JUDGING_SHARE = 0.05;

/** The round in hand (`open`), where it is worked on (`place`), what was sent. */
export class Duty {
  #log;
  #hours;
  #voice;
  #standing;
  #downloads;
  #round;
  #afterwards;
  #link = new LinkSpeed();
  #warned = "";

  /**
   * @param {any} environment see agent.js @param {{hours: import("./work_gate.js").Hours,
   *   voice: import("./presence.js").Voice, blobs: any, outbox: any}} parts
   */
  constructor(environment, { hours, voice, blobs, outbox }) {
    const { log } = environment;
    this.#log = log;
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
    const warn = (/** @type {string} */ text) => this.warn(text);
    const parts = { place: this.place, downloads: this.#downloads, telling: this.telling, warn };
    const sends = { outbox, sending: this.sending, standing: this.#standing, hello: () => this.hello() };
    this.#round = new Advancing(log, { ...parts, ...sends, hours });
    this.#afterwards = new Afterwards(parts);
  }

  /** The round in hand. */
  get open() {
    return this.#round.open;
  }

  set open(/** @type {Open | null} */ open) {
    this.#round.open = open;
  }

  /** The one that is being worked on. */
  get working() {
    return this.#round.working;
  }

  /** The run of the last task that was done. */
  get over() {
    return this.#afterwards.over;
  }

  /** Whether the task is known here: its bundle has come, and the samples are read. */
  get ready() {
    return this.#round.ready;
  }

  /** Whether the model of a task that is done is on its way. */
  get finishing() {
    return this.#afterwards.finishing;
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
    const { workedOn } = this.#round;
    if (this.open) this.#afterwards.drop();
    if (workedOn && this.#mayJudge(now)) {
      this.#round.workedOn = null;
      await this.#afterwards.judge(workedOn);
    } else if (this.open) {
      await this.#round.onward(progress);
    } else if (this.finishing) {
      await this.#afterwards.fetchFinal(now);
      if (!this.finishing) this.#round.workedOn = null;
    }
  }

  /** Whether there is time for the model of the round before: of an open round it may take a small part. */
  #mayJudge(/** @type {number} */ now) {
    if (this.finishing || this.#isFetchedFrom) return false;
    return !this.open || this.place.judgingS < JUDGING_SHARE * (this.open.closes - now);
  }

  /** Whether the aggregator is to fetch content from here, which waits for nothing that can be done later. */
  get #isFetchedFrom() {
    return [...this.outbox].some((message) => message.blob);
  }

  /** The task is done: what came of it is fetched and judged, if the task is known. @param {Open} over */
  finish(over) {
    this.#afterwards.finish(over, this.#hours.clock());
  }

  /** While no work may be done: say so, be there, send what waits unless the link is to be spared. */
  async standBy() {
    const now = this.#hours.clock();
    const offer = this.open?.offer;
    this.#standing.pause(offer && !this.#round.hasAnswered(offer) ? offer : null);
    if (!this.#hours.quiet) await this.sending.due(now);
    if (this.greeting.due(now)) this.hello();
  }

  /** Work may be done again; a round that has closed in the meantime is not begun. */
  resume() {
    if (!this.#standing.resume()) return;
    if (this.open && this.open.closes <= this.#hours.clock()) this.open = null;
    this.hello();
  }

  /** Who is here, and with how many samples: an aggregator believes no update that says more. */
  hello() {
    this.greeting.said(this.#hours.clock());
    const hello = this.place.hello(this.#voice.boot);
    if (this.ready) {
      const waiting = [...this.outbox].filter((message) => message.task === this.#voice.task);
      hello.num_examples = Math.max(hello.num_examples, ...waiting.map((message) => message.num_examples));
    }
    this.#round.samplesSaid = hello.num_examples;
    this.#voice.hello(hello);
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

  /** A contribution has its receipt. @param {any} said */
  async settle(said) {
    const receipt = { ...said, reason: said.reason && oneLine(said.reason) }; // it is shown
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
    if (text !== this.#warned) this.#log("warning", text);
    this.#warned = text;
  }

  #arrived(/** @type {any} */ blob, /** @type {number} */ seconds) {
    this.#link.sawDown(blob.size, seconds);
    this.#round.lookAgain();
  }
}
