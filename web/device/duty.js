/** A device's work in a round: fetch what it needs, train, send the update until it is receipted (client/duty.py). */

import { AfterRound } from "./after_round.js";
import { Downloads } from "./downloads.js";
import { oneLine } from "./errors.js";
import { EventReporter } from "./event_reporter.js";
import { HelloRetry } from "./hello_retry.js";
import { InProcess } from "./in_process.js";
import { LinkSpeed } from "./link_speed.js";
import { PauseNotice } from "./pause_notice.js";
import { RoundWork } from "./round_work.js";
import { ContributionSender } from "./sending.js";
import { answerGet } from "./transfer.js";

/** @typedef {import("./offers.js").OpenRound} OpenRound */

/** Share of the rest of an open round that judging the model of the round before may take. */
const JUDGING_SHARE = 0.05;

/** The open round (`open`), the backend that works on it (`backend`), and what was sent. */
export class DeviceRounds {
  #log;
  #gate;
  #messages;
  #pauseNotice;
  #downloads;
  #roundWork;
  #afterRound;
  #linkSpeed = new LinkSpeed();
  #warned = "";

  /**
   * @param {any} environment see agent.js @param {{gate: import("./work_gate.js").WorkGate,
   *   messages: import("./presence.js").DeviceMessages, blobs: any, outbox: any}} parts
   */
  constructor(environment, { gate, messages, blobs, outbox }) {
    const { log } = environment;
    this.#log = log;
    this.#gate = gate;
    this.#messages = messages;
    this.blobs = blobs;
    this.outbox = outbox;
    this.sending = new ContributionSender(outbox, messages, log);
    this.helloRetry = new HelloRetry(() => messages.unacknowledged("hello"));
    this.#pauseNotice = new PauseNotice(gate, messages);
    const arrived = (/** @type {any} */ blob, /** @type {number} */ seconds) => this.#arrived(blob, seconds);
    this.#downloads = new Downloads(blobs, { ask: (get) => messages.ask(get), arrived, log });
    this.reporter = new EventReporter(environment.tell, gate.clock);
    this.backend = new InProcess(environment, blobs, this.#linkSpeed);
    const warn = (/** @type {string} */ text) => this.warn(text);
    const parts = { backend: this.backend, downloads: this.#downloads, reporter: this.reporter, warn };
    const sends = { outbox, sending: this.sending, pauseNotice: this.#pauseNotice, hello: () => this.hello() };
    this.#roundWork = new RoundWork(log, { ...parts, ...sends, gate });
    this.#afterRound = new AfterRound(parts);
  }

  /** The open round. */
  get open() {
    return this.#roundWork.open;
  }

  set open(/** @type {OpenRound | null} */ open) {
    this.#roundWork.open = open;
  }

  /** The round that is being worked on. */
  get working() {
    return this.#roundWork.working;
  }

  /** The run of the last task that was done. */
  get finishedRun() {
    return this.#afterRound.finishedRun;
  }

  /** Whether the task is known here: its bundle has come, and the samples are read. */
  get ready() {
    return this.#roundWork.ready;
  }

  /** Whether the final model of a task is being fetched. */
  get finishing() {
    return this.#afterRound.finishing;
  }

  /**
   * Do what is due now, training included. Throws WorkStopped, and unexpected errors.
   * @param {(done: number) => Promise<void>} progress called while training, from 0 to 1
   */
  async due(progress) {
    const now = this.#gate.clock();
    if (!this.#gate.open) {
      await this.standBy();
      return;
    }
    this.resume();
    await this.sending.due(now);
    if (this.helloRetry.due(now)) this.hello();
    const { workedOn } = this.#roundWork;
    if (this.open) this.#afterRound.drop();
    if (workedOn && this.#mayJudge(now)) {
      this.#roundWork.workedOn = null;
      await this.#afterRound.judge(workedOn);
    } else if (this.open) {
      await this.#roundWork.advance(progress);
    } else if (this.finishing) {
      await this.#afterRound.fetchFinal(now);
      if (!this.finishing) this.#roundWork.workedOn = null;
    }
  }

  /** Whether there is time to judge the model of the round before: it may take a small part of an open round. */
  #mayJudge(/** @type {number} */ now) {
    if (this.finishing || this.#isFetchedFrom) return false;
    return !this.open || this.backend.judgingS < JUDGING_SHARE * (this.open.closes - now);
  }

  /** Whether the aggregator still has to fetch a blob from here: judging can wait, that cannot. */
  get #isFetchedFrom() {
    return [...this.outbox].some((message) => message.blob);
  }

  /** The task is done: fetch and judge its final model, if the task is known here. @param {OpenRound} over */
  finish(over) {
    this.#afterRound.finish(over, this.#gate.clock());
  }

  /** While no work is allowed: tell so, repeat the hello, and send what waits unless the link must be spared. */
  async standBy() {
    const now = this.#gate.clock();
    const offer = this.open?.offer;
    this.#pauseNotice.pause(offer && !this.#roundWork.hasAnswered(offer) ? offer : null);
    if (!this.#gate.quiet) await this.sending.due(now);
    if (this.helloRetry.due(now)) this.hello();
  }

  /** Work is allowed again; a round that has closed in the meantime is not begun. */
  resume() {
    if (!this.#pauseNotice.resume()) return;
    if (this.open && this.open.closes <= this.#gate.clock()) this.open = null;
    this.hello();
  }

  /** Say hello with the number of samples: an aggregator refuses an update that claims more. */
  hello() {
    this.helloRetry.sent(this.#gate.clock());
    const hello = this.backend.hello(this.#messages.boot);
    if (this.ready) {
      const waiting = [...this.outbox].filter((message) => message.task === this.#messages.task);
      hello.num_examples = Math.max(hello.num_examples, ...waiting.map((message) => message.num_examples));
    }
    this.#roundWork.samplesInHello = hello.num_examples;
    this.#messages.hello(hello);
    this.#pauseNotice.helloSent();
  }

  /** The link was down: begin downloads and sending anew. */
  restart() {
    this.#downloads.restart();
    this.sending.restart();
  }

  /** The first blocks of this blob come unasked. @param {any} blob */
  async expect(blob) {
    await this.#downloads.expect(blob, this.#gate.clock());
  }

  /** Take a block that came. @param {Uint8Array} sha @param {number} index @param {Uint8Array} data */
  async block(sha, index, data) {
    await this.#downloads.received(sha, index, data, this.#gate.clock());
    this.reporter.received(data.length);
  }

  /**
   * Send the blocks asked for; not while the link must be spared: they must be asked for again. @param {any} get
   */
  async answer(get) {
    if (this.#gate.quiet) return;
    for await (const { index, data } of answerGet(this.blobs, get)) this.#messages.block(get.blob.sha, index, data);
  }

  /** Take the receipt of a contribution. @param {any} said */
  async settle(said) {
    const receipt = { ...said, reason: said.reason && oneLine(said.reason) }; // the user sees the reason
    const message = this.outbox.answering(receipt);
    const counts = receipt.status === "accepted" || receipt.status === "duplicate";
    if (message) await this.backend.receiptReceived(message, counts);
    const settled = await this.sending.settle(receipt, this.#gate.clock());
    if (!settled) return;
    this.#linkSpeed.sawUp(settled.bytes, settled.seconds);
    this.reporter.receipted(receipt, settled.message.kind);
  }

  /**
   * Log a warning once in a row: what is tried at each tick may fail at each. @param {string} text
   */
  warn(text) {
    if (text !== this.#warned) this.#log("warning", text);
    this.#warned = text;
  }

  #arrived(/** @type {any} */ blob, /** @type {number} */ seconds) {
    this.#linkSpeed.sawDown(blob.size, seconds);
    this.#roundWork.lookAgain();
  }
}
