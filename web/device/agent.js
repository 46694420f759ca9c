/** The device's main loop: what comes over the link, and its turn to do what is due. */

import { Attending } from "./attending.js";
import { Blobs } from "./blobs.js";
import { Duty } from "./duty.js";
import { BlobError, DiskError, MessageError, Stopped, TopicError, oneLine } from "./errors.js";
import { Following } from "./offer_stream.js";
import { Going } from "./interruption.js";
import { Hours } from "./work_gate.js";
import { Inbox } from "./inbox.js";
import { Outbox } from "./outbox.js";
import { Receiving } from "./receiving.js";
import { sealer } from "./signing.js";
import { Voice } from "./presence.js";
import * as topics from "./topics.js";
import { Trust } from "./trust.js";

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
 * that it is here for (empty: whichever there is), and its own key, by which it signs (empty: it does not).
 * @typedef {{name: string, key?: Uint8Array, task?: string, secret?: Uint8Array}} Settings
 */

/** Seconds between looks at what is due, while nothing comes in. */
const TICK_S = 0.1;
/** And while nothing can fall due but what its owner says. */
const IDLE_S = 1;

/**
 * One life of one device, made by `Agent.open`. Make the link with its `will`, `greeting`, `subscriptions`.
 */
export class Agent {
  #environment;
  #settings;
  #duty;
  #attending;
  #going;
  #voice;
  #inbox;
  #receiving;

  /**
   * With what an earlier life left on the disk. @param {Settings} settings @param {Environment} environment
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
    const hours = new Hours(environment.clock);
    const voice = new Voice(settings.name, drawnBoot());
    const around = { ...environment, name: settings.name, clock: () => hours.worked() };
    this.#environment = environment;
    this.#settings = settings;
    this.#inbox = new Inbox(environment.clock);
    this.#duty = new Duty(around, { hours, voice, blobs, outbox });
    this.#going = new Going(hours, this.#duty, (seconds) => this.#hear(seconds));
    this.#voice = voice;
    this.#voice.key = trust.key;
    const word = trust.key.length ? trust.word.bind(trust) : null;
    if (seal) this.#voice.sign(seal, word);
    const parts = { duty: this.#duty, voice };
    this.#attending = new Attending(environment, settings.task ?? "", parts);
    const hears = { ...parts, attending: this.#attending, following: new Following(trust), trust };
    this.#receiving = new Receiving(environment.log, hears);
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
    return this.#attending.done && this.#inbox.isEmpty && !outbox.size && !finishing;
  }

  /** What the link reports; see link.js. @param {any} event */
  took(event) {
    this.#inbox.put(event);
  }

  /** What it speaks through from now on. @param {import("./presence.js").Wire} link */
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
    return open !== null || outbox.size > 0 || finishing || greeting.waiting || this.#attending.isLooking;
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
      await this.#attending.believe();
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
        if (!(error instanceof MessageError || error instanceof TopicError)) this.#excuse(error);
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
      await this.#receiving.receive(event, came);
    }
  }
}

/** Drawn anew in each life, so that the will of an earlier one is known: 63 bits. @returns {bigint} */
function drawnBoot() {
  return crypto.getRandomValues(new BigUint64Array(1))[0] >> 1n;
}
