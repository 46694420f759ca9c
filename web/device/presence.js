/**
 * What a device says, and through what: its topics, its presence, and of its plans what there is time for.
 */

import { Contribution, FromDevice, Get, Hello, Plan, State, encode } from "./messages.js";
import { packetBytes } from "./packets.js";
import { withWord } from "./compact_round.js";
import * as topics from "./topics.js";

/**
 * The part of link.js that is used here. `publish` sends now or when the link is back, and never waits;
 * `underWay`: messages that the broker has not acknowledged yet, on this topic or on any.
 * @typedef {{publish: (topic: string, payload: Uint8Array, retain?: boolean) => unknown,
 *   underWay: (topic?: string) => number, bytesUp: number, bytesDown: number}} Wire
 *
 * That this device says a payload on a topic, in a run (see session_mac.js).
 * @typedef {(topic: string, run: string, payload: Uint8Array) => Promise<Uint8Array>} Word
 */

/** Ends of topics whose messages a device with a key signs. */
const SIGNED = new Set(["hello", "plan", "contribution"]);
const SIGNATURE_BYTES = 64;

/** In place of reasons that are left out. */
export const AND_MORE = "...";

/** One life (`boot`) of the device `name`; it can speak once it has a `link`. */
export class Voice {
  /** The task that it is in, or asks for; empty: whichever there is. */
  task = "";
  /** By which an aggregator may agree with it (see session_mac.js). */
  key = new Uint8Array();
  /** @type {Wire} */
  link = { publish: () => false, underWay: () => 0, bytesUp: 0, bytesDown: 0 };
  #name;
  /** @type {string | null} */
  #planSaid = null;
  /** @type {import("./signing.js").Seal | null} */
  #seal = null;
  /** @type {Word | null} */
  #word = null;
  /** What is being signed: its topics, and the end of it all. @type {string[]} */
  #signing = [];
  #signed = Promise.resolve();

  /** @param {string} name @param {bigint} boot */
  constructor(name, boot) {
    this.#name = name;
    this.boot = boot;
  }

  /**
   * Sign hellos, plans and contributions from now on, and put a word on those in few bytes; without `word` there
   * are none of those. @param {import("./signing.js").Seal} seal @param {Word | null} word
   */
  sign(seal, word) {
    this.#seal = seal;
    this.#word = word;
  }

  /** Whether contributions may be sent in few bytes. */
  get isBrief() {
    return !this.#seal || this.#word !== null;
  }

  /**
   * What the link says for us: when it has the broker, and when we leave; and the broker when it has lost us.
   * @param {boolean} online @param {boolean} [leaving]
   */
  presence(online, leaving = false) {
    const state = { boot: this.boot, online, leaving, paused: false };
    return { topic: this.#topic("state"), payload: encode(State, state), retain: true };
  }

  /** That no work may be done here for now, or that it may again. @param {boolean} yes */
  paused(yes) {
    this.#publish("state", State, { boot: this.boot, online: true, leaving: false, paused: yes }, true);
  }

  /** Messages that have not yet reached the broker for sure. @param {string} [leaf] */
  underWay(leaf = "") {
    const topic = leaf ? this.#topic(leaf) : "";
    const signing = this.#signing.filter((one) => !topic || one === topic).length;
    return signing + this.link.underWay(topic);
  }

  /** The one who hears it may not have heard the last plan. @param {any} hello */
  hello(hello) {
    this.#planSaid = null;
    this.#publish("hello", Hello, { ...hello, task: this.task, key: this.key });
  }

  /**
   * Tell of a plan that is another than the last, before the update that it is for. That one must not be late
   * for it: what does not fit into `roomBytes` of reasons is left out, and the plan where it does not fit at
   * all. Where nothing is trained there is all the room. @param {any} plan @param {number} roomBytes
   */
  plan(plan, roomBytes) {
    const passed = plan.reasons.map((/** @type {string} */ reason) => reason.split(" needs")[0]);
    const said = JSON.stringify([plan.kind, ...passed]);
    if (plan.kind && said === this.#planSaid) return;
    const fits = (/** @type {any} */ one) => packetBytes(this.#topic("plan"), this.#sized(encode(Plan, one))) <= roomBytes;
    let told = plan;
    while (plan.kind && told && !fits(told)) told = shorter(told);
    if (!told) return;
    this.#publish("plan", Plan, told);
    this.#planSaid = said;
  }

  /** @param {any} message */
  contribution(message) {
    this.#publish("contribution", Contribution, message);
  }

  /** A contribution in few bytes, of this run. @param {Uint8Array} payload @param {string} run */
  short(payload, run) {
    const topic = this.#topic("c");
    const word = this.#word;
    if (word) this.#inTurn(topic, async () => withWord(payload, await word(topic, run, payload)));
    else this.link.publish(topic, payload);
  }

  /** @param {any} get */
  ask(get) {
    this.#publish("get", Get, get);
  }

  /**
   * One that is still on its way is not sent twice. @param {Uint8Array} sha @param {number} index
   * @param {Uint8Array} data
   */
  block(sha, index, data) {
    const topic = this.#topic(topics.block(sha, index));
    if (!this.link.underWay(topic)) this.link.publish(topic, data);
  }

  /** @param {string} leaf @param {any} kind @param {any} message @param {boolean} [retain] */
  #publish(leaf, kind, message, retain = false) {
    const topic = this.#topic(leaf);
    const payload = encode(kind, message);
    const seal = SIGNED.has(leaf) ? this.#seal : null;
    if (seal) this.#inTurn(topic, () => seal(topic, payload));
    else this.link.publish(topic, payload, retain);
  }

  /**
   * Publish what takes a moment to sign, after what came before it. Where that fails nothing is sent, and what
   * has no answer is said again. @param {string} topic @param {() => Promise<Uint8Array>} make
   */
  #inTurn(topic, make) {
    this.#signing.push(topic);
    const said = this.#signed.then(async () => {
      const payload = await make().catch(() => null);
      this.#signing.shift();
      if (payload) this.link.publish(topic, payload);
    });
    this.#signed = said.catch(() => {}); // or nothing would ever be said again
  }

  /** As many bytes as the payload has on the wire. @param {Uint8Array} payload */
  #sized(payload) {
    const signature = new Uint8Array(SIGNATURE_BYTES);
    return this.#seal ? encode(FromDevice, { signature, message: payload }) : payload;
  }

  /** @param {string} leaf */
  #topic(leaf) {
    return topics.up(this.#name, leaf);
  }
}

/** With one reason less; null when there is none left. @param {any} plan */
function shorter(plan) {
  const reasons = plan.reasons.filter((/** @type {string} */ reason) => reason !== AND_MORE);
  return reasons.length ? { ...plan, reasons: [...reasons.slice(0, -1), AND_MORE] } : null;
}
