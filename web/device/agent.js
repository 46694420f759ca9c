/** The device's main loop: handles messages from the link and runs work that is due. */

import { Blobs } from "./blobs.js";
import { DeviceRounds } from "./duty.js";
import { BlobError, DiskError, MessageError, TopicError, WorkStopped, oneLine } from "./errors.js";
import { Inbox } from "./inbox.js";
import { Interruption } from "./interruption.js";
import { MessageRouter } from "./message_router.js";
import { OfferStream } from "./offer_stream.js";
import { Outbox } from "./outbox.js";
import { DeviceMessages } from "./presence.js";
import { sealer } from "./signing.js";
import { TaskOffers } from "./task_offers.js";
import * as topics from "./topics.js";
import { Trust } from "./trust.js";
import { WorkGate } from "./work_gate.js";

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

/** One device, made by `Agent.open`. Make the link with its `will`, `greeting` and `subscriptions`. */
export class Agent {
  #environment;
  #settings;
  #rounds;
  #taskOffers;
  #interruption;
  #messages;
  #inbox;
  #router;

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
    const around = { ...environment, name: settings.name, clock: () => gate.worked() };
    this.#environment = environment;
    this.#settings = settings;
    this.#inbox = new Inbox(environment.clock);
    this.#rounds = new DeviceRounds(around, { gate, messages, blobs, outbox });
    this.#interruption = new Interruption(gate, this.#rounds, (seconds) => this.#hear(seconds));
    this.#messages = messages;
    this.#messages.key = trust.key;
    const mac = trust.key.length ? trust.mac.bind(trust) : null;
    if (seal) this.#messages.sign(seal, mac);
    const parts = { rounds: this.#rounds, messages };
    this.#taskOffers = new TaskOffers(environment, settings.task ?? "", parts);
    const handlers = { ...parts, taskOffers: this.#taskOffers, offerStream: new OfferStream(trust), trust };
    this.#router = new MessageRouter(environment.log, handlers);
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
    const { outbox, finishing } = this.#rounds;
    return this.#taskOffers.done && this.#inbox.isEmpty && !outbox.size && !finishing;
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
    while (!this.#interruption.isStopped && !(untilDone && this.finished)) {
      await this.step(this.#isWaiting ? TICK_S : IDLE_S);
    }
    await this.#rounds.backend.close();
  }

  /** Whether something may fall due without a message. */
  get #isWaiting() {
    const { open, outbox, finishing, helloRetry } = this.#rounds;
    return open !== null || outbox.size > 0 || finishing || helloRetry.waiting || this.#taskOffers.isLooking;
  }

  /** End `run` soon. Work in progress is given up, and begun again by the next process. */
  stop() {
    this.#interruption.isStopped = true;
    this.#inbox.wake();
  }

  /** Say hello, because samples have come or gone. */
  samplesChanged() {
    if (this.#rounds.ready) this.#rounds.hello();
  }

  /**
   * Logits (n, classes) of the newest model here, computed between two steps of the work in progress; null if
   * there is no model yet. @param {Float32Array} x prepared samples, (n, *input)
   */
  predict(x) {
    const answer = this.#interruption.between(() => this.#rounds.backend.predict(x));
    this.#inbox.wake();
    return answer;
  }

  /** Handle all events and do what is due; waits up to `timeout` seconds for an event. */
  async step(timeout = 0) {
    await this.#hear(timeout);
    this.#rounds.reporter.traffic(this.#messages.link);
    try {
      await this.#interruption.others();
      await this.#taskOffers.acceptDone();
      await this.#rounds.due((done) => this.#interruption.progress(done));
    } catch (error) {
      this.#logError(error);
    }
  }

  /** Log an error that ended a round; an unexpected one with its place. The device goes on. @param {any} error */
  #logError(error) {
    const place = String(error?.stack).split("\n")[1]?.trim();
    if (error instanceof BlobError || error instanceof DiskError) this.#rounds.warn(error.message);
    else if (error instanceof WorkStopped) this.#environment.log("info", error.message);
    else this.#rounds.warn(`this is a fault: ${oneLine(error)}; ${place}`);
  }

  /** Handle all events. An invalid message is logged and ignored. @param {number} timeout */
  async #hear(timeout) {
    await this.#inbox.wait(timeout);
    for (let next = this.#inbox.next(); next; next = this.#inbox.next()) {
      try {
        await this.#handle(next.event, next.came);
      } catch (error) {
        if (!(error instanceof MessageError || error instanceof TopicError)) this.#logError(error);
        else this.#environment.log("warning", `ignored: ${oneLine(error)}`);
      }
    }
  }

  async #handle(/** @type {any} */ event, /** @type {number} */ came) {
    const { log, tell } = this.#environment;
    if (event.kind === "connected") {
      log("info", `connected${event.first ? "" : " again"}`);
      tell({ type: "link", connected: true, reason: "" });
      this.#rounds.restart();
      this.#rounds.hello();
    } else if (event.kind === "disconnected") {
      log("warning", `disconnected: ${event.reason}`);
      tell({ type: "link", connected: false, reason: event.reason });
    } else {
      await this.#router.receive(event, came);
    }
  }
}

/** 63 random bits, drawn anew by each process, to recognise the last will of an earlier one. @returns {bigint} */
function drawnBoot() {
  return crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n;
}
