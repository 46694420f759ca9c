/**
 * Executes the commands of the device's state machine, with the link, the disk and the backend, and feeds it events
 * (device/agent/runner.py). Times in seconds.
 */

import { Downloads } from "./downloads.js";
import { BlobError, DeviceError, DiskError, RoundLeftOut, WorkStopped, oneLine } from "./errors.js";
import { EventReporter } from "./event_reporter.js";
import { InProcess } from "./in_process.js";
import { LinkSpeed } from "./link_speed.js";
import { step } from "./machine.js";
import { entryOf, offeredOf, offersOf, stateOf, whyOf } from "./machine_inputs.js";
import { hexOf, isWhole } from "./messages.js";
import { percent } from "./rounding.js";
import { satOutPlan } from "./reports.js";
import { ContributionSender, counts } from "./sending.js";
import { answerGet } from "./transfer.js";
import { ClosedWhilePaused } from "./work.js";

/** @typedef {import("./offers.js").OpenRound} OpenRound */
/** @typedef {import("./turn.js").DeviceCommand} DeviceCommand */

/** Seconds between looks at whether paused work may go on. */
const LOOK_S = 1;
/** Seconds of work between looks at the outbox. */
const SEND_S = 1;

/** The machine's `state`, the backend, and what the commands act on. Set `hear`, which handles messages. */
export class Runner {
  /** Whether the device is to stop, which ends work in progress. */
  isStopped = false;
  /** Handle messages, waiting so many seconds for one. @type {(seconds: number) => Promise<void>} */
  hear = async () => {};
  #environment;
  #gate;
  #messages;
  #downloads;
  #linkSpeed = new LinkSpeed();
  /** Offers by number. @type {Map<number, OpenRound>} */
  #offers = new Map();
  #lastNumber = 0;
  /** Blobs by hash, of the last preview. @type {Map<string, any>} */
  #named = new Map();
  /** @type {{plan: any, roomBytes: number} | null} */
  #plan = null;
  /** @type {import("./in_process.js").WorkResult | null} */
  #result = null;
  /** @type {any} */
  #receipt = null;
  #share = 0;
  #tickedS = 0;
  #warned = "";
  /** Calls of `between` that wait for the next step. @type {(() => Promise<void>)[]} */
  #others = [];

  /**
   * @param {any} environment see agent.js, with `log` @param {{gate: import("./work_gate.js").WorkGate,
   *   messages: import("./presence.js").DeviceMessages, blobs: any, outbox: any, task: string}} parts `task` is the
   *   only one to join; empty: any
   */
  constructor(environment, { gate, messages, blobs, outbox, task }) {
    this.#environment = environment;
    this.#gate = gate;
    this.#messages = messages;
    this.blobs = blobs;
    this.outbox = outbox;
    this.sending = new ContributionSender(outbox, messages, environment.log);
    const ask = (/** @type {any} */ get) => messages.ask(get);
    const arrived = (/** @type {any} */ blob, /** @type {number} */ seconds) => this.#arrived(blob, seconds);
    this.#downloads = new Downloads(blobs, { ask, arrived, log: environment.log });
    this.reporter = new EventReporter(environment.tell, gate.clock);
    const around = { ...environment, clock: () => gate.worked() };
    this.backend = new InProcess(around, blobs, this.#linkSpeed);
    this.state = stateOf(task, outbox);
    messages.task = task;
  }

  /** Tell the machine of an event, and do what it commands. @param {string} type @param {object} [fields] */
  async feed(type, fields = {}) {
    const before = this.state;
    const event = { type, now: this.#gate.clock(), ...fields };
    const { state, commands } = step(before, event);
    this.state = state;
    this.#messages.task = state.task;
    if (state.heard !== before.heard) this.#tellOffer(/** @type {any} */ (event).offer ?? before.past);
    for (const command of commands) await this.#doing[command.type](command);
  }

  /** Time has passed. */
  tick() {
    return this.feed("Tick", { flight: this.#inFlight });
  }

  /** Tell the machine if work is now allowed, or is no longer. */
  async lookAtGate() {
    const { open: allows, quiet } = this.#gate;
    const { paused, quiet: wasQuiet } = this.state;
    if (allows === paused || (!allows && quiet !== wasQuiet)) await this.feed("WorkGateChanged", { allows, quiet });
  }

  /** Go on to no other task when the device's task is done. */
  leaveWhenDone() {
    this.state = { ...this.state, rules: { ...this.state.rules, leaves: true } };
  }

  /** The link is connected. */
  linkUp() {
    return this.feed("LinkUp", { flight: this.#inFlight });
  }

  /** The broker has no offer of a task any more. @param {string} task @param {string} why */
  async withdrawn(task, why) {
    const { task: own, done, withdrawn } = this.state;
    if (task === own && !done && !withdrawn) {
      this.#environment.log("warning", `${why}. Waiting for an offer`);
    }
    await this.feed("OfferWithdrawn", { task });
  }

  /**
   * Take an offer that is trusted. @param {OpenRound} heard @param {{to_all: boolean, retained?: boolean,
   *   over?: boolean}} how as in OfferReceived (device/machine/events.py)
   */
  take(message, { to_all, retained = false, over = false }) {
    this.#lastNumber += 1;
    const numbers = offersOf(this.state).map(({ number }) => number);
    this.#offers = new Map([...this.#offers].filter(([number]) => numbers.includes(number)));
    this.#offers.set(this.#lastNumber, message);
    const offer = offeredOf(this.#lastNumber, message);
    return this.feed("OfferReceived", { offer, to_all, retained, over, flight: this.#inFlight });
  }

  /** Ask for the whole offer, unless a hello already waits for its answer. @param {Error} lost */
  askWholeOffer(error) {
    if (this.state.hello_s === null) this.#environment.log("info", error.message);
    return this.feed("WholeOfferNeeded");
  }

  /** Take the receipt of a contribution. @param {any} said */
  async takeReceipt(wire) {
    const receipt = { ...wire, reason: wire.reason && oneLine(wire.reason) }; // the user sees the reason
    const message = this.outbox.named(receipt);
    const { round, reason, retry_after_s: retry_s } = receipt;
    if (!message) return;
    if (retry_s) {
      this.#environment.log("warning", `round ${round}: ${message.kind} again in ${retry_s} s: ${reason}`);
    }
    this.#receipt = receipt;
    await this.feed("ReceiptReceived", { seq: message.seq, counts: counts(receipt), retry_s });
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
   * Log a warning once in a row: what is tried at each tick may fail at each. @param {string} text
   */
  warn(text) {
    if (text !== this.#warned) this.#environment.log("warning", text);
    this.#warned = text;
  }

  /** Log an error that ended some work; an unexpected one with its place. The device goes on. @param {any} error */
  logError(error) {
    const place = String(error?.stack).split("\n")[1]?.trim();
    if (error instanceof BlobError || error instanceof DiskError) this.warn(error.message);
    else if (error instanceof WorkStopped) this.#environment.log("info", error.message);
    else this.warn(`this is a fault: ${oneLine(error)}; ${place}`);
  }

  /**
   * Called between steps of the work, of which the share `done` (0 to 1) is done: handles messages, sends, and waits
   * while the device is paused. Throws WorkStopped when the device is to stop, or the training is cancelled;
   * ClosedWhilePaused when the round closed during the pause. @param {number} done
   */
  async progressed(done) {
    this.#share = done;
    this.reporter.progressed(done);
    await this.hear(0);
    await this.others();
    this.#checkStopped();
    const now = this.#gate.clock();
    if (now - this.#tickedS >= SEND_S) {
      this.#tickedS = now;
      await this.tick();
    }
    if (!this.state.training) return;
    await this.lookAtGate();
    if (this.state.paused) await this.#hold(); // an earlier hold was ended by an error
  }

  #checkStopped() {
    const done = percent(this.#share);
    const { training, cancelled } = this.state;
    if (this.isStopped) throw new WorkStopped(`stopped with ${done} of an update done: it is not sent`);
    if (!training || !cancelled) return;
    const { reason } = this.#gate;
    if (cancelled === "closed") throw new ClosedWhilePaused(`${done} done when the round closed; ${reason}`);
    if (cancelled === "task done") throw new WorkStopped(`the task is over, with ${done} of an update`);
    throw new WorkStopped(`round ${training.round} given up, ${done} done: ${reason}`);
  }

  /** What each command does. @type {{[type: string]: (command: any) => unknown}} */
  #doing = {
    SayHello: ({ least }) => this.#sayHello(least),
    SayPaused: ({ yes }) => this.#messages.paused(yes),
    SendPlan: () => this.#plan && this.#messages.plan(this.#plan.plan, this.#plan.roomBytes),
    SendSatOut: ({ task, round }) => this.#messages.plan(satOutPlan(task, round, [this.#gate.reason]), 0),
    Send: (command) => this.#send(command),
    JoinTask: ({ task }) => this.#environment.log("info", `going on to task '${task}'`),
    TaskDone: ({ task, round }) => this.#environment.log("info", `task '${task}' is done after round ${round}`),
    RestartDownloads: () => this.#downloads.restart(),
    ForgetAggregator: () => this.sending.forget(),
    ExpectBlobs: async ({ number, blobs }) => {
      const parts = this.#offer(number).offer.base.checkpoint;
      const coming = parts.filter((/** @type {any} */ blob) => blobs.includes(hexOf(blob)));
      for (const blob of coming) await this.#downloads.expect(blob, this.#gate.clock());
    },
    FetchAhead: ({ number }) => {
      const parts = this.#offer(number).offer.base.checkpoint;
      const missing = parts.filter((/** @type {any} */ blob) => !this.blobs.has(blob));
      return this.#downloads.advance(missing, this.#gate.clock());
    },
    CloseContribution: ({ seq, reason }) => this.sending.close(seq, reason === "round over"),
    RoundEnded: () => {},
    FinalModelMissed: ({ number }) =>
      this.warn(`the model of task '${this.#offer(number).offer.task}' has not come in time`),
    Prune: ({ number }) => {
      const waits = [...this.outbox].map((message) => message.blob);
      return this.#downloads.prune(this.#offer(number).offer, waits);
    },
    Cancel: () => {}, // `progressed` ends the training, by the state
    Preview: ({ number }) => this.#answered(number, (current) => this.#preview(number, current)),
    Fetch: ({ number, blobs }) => this.#answered(number, () => this.#fetch(number, blobs)),
    Prepare: ({ number }) => this.#answered(number, (current) => this.#prepare(number, current)),
    Train: ({ number }) => this.#answered(number, (current) => this.#train(number, current)),
    Hold: () => this.#hold(),
    Keep: () => this.#keep(),
    Settle: (command) => this.#settle(command),
    Evaluate: ({ number }) => this.#answered(number, (current) => this.#evaluate(number, current, -1)),
    KeepFinalModel: ({ number }) => this.#answered(number, (current) => this.#evaluate(number, current, 0)),
  };

  /** Do some work on an offer, and tell the machine of its end or failure. */
  async #answered(/** @type {number} */ number, /** @type {(current: OpenRound) => Promise<any[] | null>} */ work) {
    const current = this.#offer(number);
    const isEvaluating = this.state.evaluating === number;
    let answer;
    try {
      answer = await work(current);
    } catch (error) {
      const whole = isWhole(current.offer.base);
      answer = ["WorkFailed", { number, why: this.#failed(current, error, isEvaluating), whole }];
    }
    const bundles = this.backend.task ? this.backend.bundle : "";
    if (bundles !== this.state.bundles) await this.feed("TaskKnown", { bundles });
    if (answer) await this.feed(answer[0], answer[1]);
  }

  /** Log why work has failed; returns that as WorkFailed says it. An unexpected error ends the round. */
  #failed(/** @type {OpenRound} */ { offer }, /** @type {any} */ error, /** @type {boolean} */ isEvaluating) {
    const { task, run, round } = offer;
    const { final } = this.state;
    const isFinal = final?.run === run && final.round === round;
    const isExpected = error instanceof DeviceError && !(error instanceof DiskError || error instanceof WorkStopped);
    if (!isExpected) this.logError(error);
    else if (isFinal) this.warn(`the model of task '${task}' is not judged: ${oneLine(error)}`);
    else if (isEvaluating) this.warn(`the model of round ${round} is not judged: ${oneLine(error)}`);
    else if (error instanceof RoundLeftOut) {
      this.#environment.log("warning", `round ${round} left out: ${error.message}`);
      this.#messages.plan(satOutPlan(task, round, [error.message]), 0);
    } else this.warn(`round ${round}: ${error.message}`);
    return whyOf(error);
  }

  async #preview(/** @type {number} */ number, /** @type {OpenRound} */ current) {
    const missing = await this.backend.preview(current);
    const { run, round } = current.offer;
    this.reporter.missing(`${run} ${round}`, missing);
    this.#named = new Map(missing.map((/** @type {any} */ blob) => [hexOf(blob), blob]));
    return ["Previewed", { number, missing: [...this.#named.keys()] }];
  }

  async #fetch(/** @type {number} */ number, /** @type {string[]} */ blobs) {
    const missing = blobs.map((blob) => this.#named.get(blob));
    return (await this.#downloads.advance(missing, this.#gate.clock())) ? null : ["FetchRefused", { number }];
  }

  async #prepare(/** @type {number} */ number, /** @type {OpenRound} */ current) {
    await this.#downloads.advance([], this.#gate.clock()); // nothing is fetched any longer
    await this.backend.prepare(current);
    return ["Prepared", { number }];
  }

  async #train(/** @type {number} */ number, /** @type {OpenRound} */ current) {
    this.#share = 0;
    try {
      await this.backend.work(current, {
        progress: (done) => this.progressed(done),
        lost: () => this.#gate.lost(),
        decided: (offer, plan, decision) => this.#decided(offer, plan, decision),
        made: (result) => this.#onResult(result),
        waiting: (run) => new Set([...this.outbox].filter((entry) => entry.run === run).map((entry) => entry.round)),
      });
    } finally {
      this.reporter.ended(current.offer.round);
    }
    return ["Trained", { number, evaluate_s: this.backend.judgingS }];
  }

  /** Hold the training: handle messages and send until work is allowed. Throws as `progressed` does. */
  #hold() {
    return this.#gate.held(async () => {
      while (this.state.paused) {
        await this.tick();
        await this.hear(LOOK_S);
        await this.others();
        this.#checkStopped();
        await this.lookAtGate();
      }
    });
  }

  /** Evaluate the model of an offer, which so many `later` rounds than the offer's have made. */
  async #evaluate(/** @type {number} */ number, /** @type {OpenRound} */ current, /** @type {number} */ later) {
    this.reporter.judged(current.offer.round + later, await this.backend.judge(current));
    return ["Evaluated", { number, seconds: this.backend.judgingS }];
  }

  /** Send the plan now, so that it travels while the device computes. */
  #decided(/** @type {any} */ offer, /** @type {any} */ plan, /** @type {any} */ decision) {
    this.#plan = { plan, roomBytes: decision.roomBytes };
    const { task, round } = plan;
    this.feed("PlanMade", { task, round }).catch((error) => this.logError(error)); // the plan is sent at once
    this.reporter.decided(offer.round, decision);
  }

  async #onResult(/** @type {import("./in_process.js").WorkResult} */ result) {
    const { run, round, message, trouble, reasons } = result;
    this.#result = result;
    const { log } = this.#environment;
    if (!message && trouble) log("warning", `round ${round} left out: ${trouble}`);
    else if (!message) log("warning", `round ${round}: sitting out: ${reasons.join("; ")}`);
    const failed = trouble ? "failed" : "sat out";
    await this.feed("Made", { run, round, result: message ? "contribution" : failed });
  }

  /** Write a contribution to disk, with the boot and number that its receipt will name. */
  async #keep() {
    const result = this.#result;
    this.#result = null;
    if (!result) throw new Error("there is no contribution to keep");
    const { run, round } = result;
    let message;
    try {
      message = await this.sending.keep(result.message);
    } catch (error) {
      if (!(error instanceof BlobError || error instanceof DiskError)) throw error;
      const text = `round ${round} left out: its contribution cannot be kept: ${oneLine(error)}`;
      this.#environment.log("warning", text);
      await this.feed("KeepFailed", { run, round });
      return;
    }
    this.reporter.made(result);
    await this.feed("Kept", { entry: entryOf(message), flight: this.#inFlight });
  }

  async #send(/** @type {any} */ { seq, first }) {
    const compact = await this.sending.send(seq, first);
    const entry = this.state.outbox.find((/** @type {any} */ waiting) => waiting.seq === seq);
    if (entry && entry.compact !== compact) await this.feed("Sent", { seq, compact });
  }

  async #settle(/** @type {any} */ { seq, counts: isCounted, first_s: firstS }) {
    const message = this.outbox.message(seq);
    const receipt = this.#receipt;
    await this.backend.receiptReceived(message, isCounted);
    await this.sending.settle(seq, receipt);
    const seconds = firstS === null ? 0 : this.#gate.clock() - firstS;
    this.#linkSpeed.sawUp(message.blob?.size ?? 0, seconds);
    this.reporter.receipted(receipt, message.kind);
    await this.feed("Settled", { seq, counts: isCounted });
  }

  async #sayHello(/** @type {number} */ least) {
    const hello = this.backend.hello(this.#messages.boot);
    const isReady = this.backend.task !== null;
    if (isReady) hello.num_examples = Math.max(hello.num_examples, least);
    this.#messages.hello(hello);
    if (hello.num_examples !== this.state.samples) await this.feed("HelloSaid", { samples: hello.num_examples });
  }

  #tellOffer(/** @type {{number: number}} */ { number }) {
    const { deadline_s: deadlineS, remaining_s: remainingS, ...offer } = this.#offer(number).offer;
    const { task, run, round, done, title, about, ask } = offer;
    this.#environment.tell({ type: "offer", task, run, round, deadlineS, remainingS, done, title, about, ask });
  }

  /** @returns {OpenRound} */
  #offer(/** @type {number} */ number) {
    return /** @type {OpenRound} */ (this.#offers.get(number));
  }

  get #inFlight() {
    const counted = (/** @type {string} */ leaf) => this.#messages.unacknowledged(leaf);
    return { messages: counted(""), hellos: counted("hello"), contributions: counted("contribution") };
  }

  async #arrived(/** @type {any} */ blob, /** @type {number} */ seconds) {
    this.#linkSpeed.sawDown(blob.size, seconds);
    await this.feed("BlobArrived", { blob: hexOf(blob) });
  }
}
