/** The device's main loop: tells the runner of the link's messages, and when time has passed (device/agent/agent.py). */

import { Blobs } from "./blobs.js";
import { MessageError, TopicError, UnknownRoundBefore, oneLine } from "./errors.js";
import { Inbox } from "./inbox.js";
import { Get, decode } from "./messages.js";
import { OfferStream } from "./offer_stream.js";
import { opened } from "./offers.js";
import { Outbox } from "./outbox.js";
import { isCompactOffer } from "./packets.js";
import { DeviceMessages } from "./presence.js";
import { Runner } from "./runner.js";
import { sealer } from "./signing.js";
import * as topics from "./topics.js";
import { Trust } from "./trust.js";
import { WorkGate } from "./work_gate.js";

/** @typedef {{topic: string, payload: Uint8Array, retain: boolean}} Received */

/**
 * What a device is given by its program. `clock` gives seconds and only goes forward; `disk` as in disk.js;
 * `open` opens a bundle on an engine; `samples` gives the labelled samples for a manifest: `training()` and
 * `held()` are LocalData, `count()` is the number of training samples; `host` as in profile.js; `tell` is
 * called with each event, see event_reporter.js.
 * @typedef {{clock: () => number, disk: import("./disk.js").Disk, open: (bundle: any) => Promise<any>,
 *   samples: (manifest: any) => Promise<any>, host: import("./profile.js").Host,
 *   tell: (event: import("./event_reporter.js").DeviceEvent) => void}} Environment
 *
 * How a device takes part: its name, the aggregator's public key (empty: offers of any aggregator count), the
 * task to join (empty: any), and its own key, with which it signs its messages (empty: it signs nothing).
 * @typedef {{name: string, key?: Uint8Array, task?: string, secret?: Uint8Array}} Settings
 */

/** Seconds between looks at what is due, while nothing comes in. */
const TICK_S = 0.1;
/** Seconds between looks while only a message or the owner can make something due. */
const IDLE_S = 1;
/** Seconds after connecting in which an offer of the task comes, as brokers keep it, if there is one. */
const LISTEN_S = 60;

/** One device, made by `Agent.open`. Make the link with its `will`, `greeting` and `subscriptions`. */
export class Agent {
  #environment;
  #settings;
  #runner;
  #messages;
  #inbox;
  #offerStream;
  #trust;
  /** @type {number | null} until when an offer must have come; null: one came */
  #listensUntil = null;

  /**
   * Continue with what an earlier process left on disk. @param {Settings} settings @param {Environment} environment
   */
  static async open(settings, environment) {
    const { disk, tell } = environment;
    /** @param {any} level @param {string} text */
    const log = (level, text) => tell({ type: "log", level, text });
    const { key = new Uint8Array(), secret = new Uint8Array() } = settings;
    const trust = await Trust.open(key, undefined, disk, secret.length > 0);
    const seal = secret.length ? await sealer(secret) : null;
    const parts = { blobs: await Blobs.open(disk), outbox: await Outbox.open(disk, log), trust, seal };
    return new Agent(settings, { ...environment, log }, parts);
  }

  /** @private @param {Settings} settings @param {any} environment @param {any} parts */
  constructor(settings, environment, { blobs, outbox, trust, seal }) {
    const gate = new WorkGate(environment.clock);
    const messages = new DeviceMessages(settings.name, drawnBoot());
    this.#environment = environment;
    this.#settings = settings;
    this.#inbox = new Inbox(environment.clock);
    this.#trust = trust;
    this.#offerStream = new OfferStream(trust);
    this.#messages = messages;
    messages.key = trust.key;
    if (seal) messages.sign(seal, trust.key.length ? trust.mac.bind(trust) : null);
    const around = { ...environment, name: settings.name };
    this.#runner = new Runner(around, { gate, messages, blobs, outbox, task: settings.task ?? "" });
    this.#runner.hear = (seconds) => this.#hear(seconds);
    /** The work gate: `pause` and `resume` take a reason. */
    this.workGate = gate;
  }

  /** The last will: the broker publishes it when the connection is lost. */
  get will() {
    return this.#messages.presence(false);
  }

  /** The message that this device leaves. */
  get farewell() {
    return this.#messages.presence(false, true);
  }

  /** The message that the link publishes at each connection, even while the device is busy. */
  get greeting() {
    return this.#messages.presence(true);
  }

  get subscriptions() {
    const { name, task } = this.#settings;
    return [task ? topics.offer(task) : topics.OFFERS, topics.down(name, "#")];
  }

  /** Whether the task is done, all contributions have receipts, and its final model is judged. */
  get finished() {
    const { done, outbox, final, evaluating } = this.#runner.state;
    return done && this.#inbox.isEmpty && !outbox.length && !final && !evaluating;
  }

  /** Take an event of the link; see link_options.js. @param {any} event */
  took(event) {
    this.#inbox.put(event);
  }

  /** Set the link to send through. @param {import("./presence.js").DeviceLink} link */
  begin(link) {
    this.#messages.link = link;
  }

  /** Work until stopped or, with `untilDone`, until finished. @param {{untilDone?: boolean}} [until] */
  async run({ untilDone = false } = {}) {
    if (untilDone) this.#runner.leaveWhenDone();
    while (!this.#runner.isStopped && !(untilDone && this.finished)) {
      await this.step(this.#isWaiting ? TICK_S : IDLE_S);
    }
    await this.#runner.backend.close();
  }

  /** Whether something may fall due without a message. */
  get #isWaiting() {
    const { open, outbox, final, hello_s: helloS, past } = this.#runner.state;
    return Boolean(open || outbox.length || final || helloS !== null || past);
  }

  /** End `run` soon. Work in progress is given up, and begun again by the next process. */
  stop() {
    this.#runner.isStopped = true;
    this.#inbox.wake();
  }

  /** Say hello, because samples have come or gone. */
  samplesChanged() {
    const runner = this.#runner;
    if (runner.backend.task) runner.feed("SamplesChanged").catch((error) => runner.logError(error));
  }

  /**
   * Logits (n, classes) of the newest model here, computed between two steps of the work in progress; null if
   * there is no model yet. @param {Float32Array} x prepared samples, (n, *input)
   */
  predict(x) {
    const answer = this.#runner.between(() => this.#runner.backend.predict(x));
    this.#inbox.wake();
    return answer;
  }

  /** Handle all events and do what is due; waits up to `timeout` seconds for an event. */
  async step(timeout = 0) {
    const runner = this.#runner;
    await this.#hear(timeout);
    runner.reporter.traffic(this.#messages.link);
    try {
      await runner.others();
      await this.#lookForOffers();
      await runner.lookAtGate();
      await runner.tick();
    } catch (error) {
      runner.logError(error);
    }
  }

  /** Notice that the broker has had no offer for this device since it connected. */
  async #lookForOffers() {
    if (this.#listensUntil === null || this.#environment.clock() < this.#listensUntil) return;
    this.#listensUntil = null;
    const { task } = this.#messages;
    const gone = `task '${task}' is not offered here: it is over, was given up, or has yet to begin`;
    await this.#runner.withdrawn(task, task ? gone : "no task is offered here");
  }

  /** Handle all events. An invalid message is logged and ignored. @param {number} timeout */
  async #hear(timeout) {
    await this.#inbox.wait(timeout);
    for (let next = this.#inbox.next(); next; next = this.#inbox.next()) {
      try {
        await this.#handle(next.event, next.came);
      } catch (error) {
        if (error instanceof UnknownRoundBefore) await this.#runner.askWholeOffer(error);
        else if (!(error instanceof MessageError || error instanceof TopicError)) this.#runner.logError(error);
        else this.#environment.log("warning", `ignored: ${oneLine(error)}`);
      }
    }
  }

  async #handle(/** @type {any} */ event, /** @type {number} */ came) {
    const { log, tell } = this.#environment;
    if (event.kind === "connected") {
      log("info", `connected${event.first ? "" : " again"}`);
      tell({ type: "link", connected: true, reason: "" });
      this.#listensUntil = this.#environment.clock() + LISTEN_S;
      await this.#runner.linkUp();
    } else if (event.kind === "disconnected") {
      log("warning", `disconnected: ${event.reason}`);
      tell({ type: "link", connected: false, reason: event.reason });
    } else {
      await this.#receive(event, came);
    }
  }

  /**
   * Handle a message that came at the time `came`. Throws MessageError, TopicError for an invalid one.
   * @param {Received} message @param {number} came in seconds
   */
  async #receive(message, came) {
    const runner = this.#runner;
    if (topics.isOffer(message.topic)) {
      const task = message.topic.slice(topics.offer("").length);
      if (!this.#messages.task || task === this.#messages.task) this.#listensUntil = null;
      if (!message.payload.length) {
        await runner.withdrawn(task, `task '${task}' is not offered any more: it is over or was given up`);
        return;
      }
      const isOfOtherTask = isCompactOffer(message.payload) && message.topic !== topics.offer(this.#messages.task);
      if (!isOfOtherTask) await this.#take(message, came, true);
      return;
    }
    const { leaf, sha, index } = topics.parse(message.topic);
    if (leaf === "task" || leaf === "n") this.#listensUntil = null;
    if (leaf === "task") await this.#take(message, came, false);
    else if (leaf === "n") await this.#take({ ...message, retain: false }, came, true);
    else if (leaf === "receipt") await runner.takeReceipt(await this.#trust.receipt(message.topic, message.payload));
    else if (leaf === "get") await runner.answer(decode(Get, message.payload));
    else if (leaf === "block") await runner.block(sha, index, message.payload);
  }

  /** Take an offer to all, or one in answer to a hello. */
  async #take(/** @type {Received} */ message, /** @type {number} */ came, /** @type {boolean} */ to_all) {
    const { topic, payload, retain } = message;
    const offer = await this.#offerStream.offer(topic, payload, retain, this.#messages.task);
    await this.#runner.take(opened(offer, came), { to_all, retained: retain && to_all, over: this.#offerStream.over });
  }
}

/** 63 random bits, drawn anew by each process, to recognise the last will of an earlier one. @returns {bigint} */
function drawnBoot() {
  return crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n;
}
