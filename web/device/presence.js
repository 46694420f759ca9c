/** Sends a device's messages on its topics, its presence and pauses included (device/connection/presence.py). */

import { withMac } from "./compact_round.js";
import { Contribution, FromDevice, Get, Hello, Plan, State, encode } from "./messages.js";
import { packetBytes } from "./packets.js";
import * as topics from "./topics.js";

/**
 * The part of Link (link.js) that is used here. `publish` sends now or when the link is back, and never waits;
 * `unacknowledged`: how many messages the broker has not acknowledged yet, on this topic or on any.
 * @typedef {{publish: (topic: string, payload: Uint8Array, retain?: boolean) => unknown,
 *   unacknowledged: (topic?: string) => number, bytesUp: number, bytesDown: number}} DeviceLink
 *
 * The MAC of a payload on a topic in a run (see session_mac.js).
 * @typedef {(topic: string, run: string, payload: Uint8Array) => Promise<Uint8Array>} Mac
 */

/** Last parts of the topics whose messages a device with a key signs. */
const SIGNED = new Set(["hello", "plan", "contribution"]);
const SIGNATURE_BYTES = 64;

/** Stands for reasons that are left out. */
export const AND_MORE = "...";

/** Sends the messages of the device `name`, once it has a `link`. `boot` tells one process of it from another. */
export class DeviceMessages {
  /** The task that it is in, or asks for; empty: any. */
  task = "";
  /** Public key for a session key with the aggregator (see session_mac.js). */
  key = new Uint8Array();
  /** @type {DeviceLink} */
  link = { publish: () => false, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 };
  #name;
  /** @type {string | null} */
  #sentPlan = null;
  /** @type {import("./signing.js").Seal | null} */
  #seal = null;
  /** @type {Mac | null} */
  #mac = null;
  /** Topics of messages that are being signed; `#signed` resolves when the last is sent. @type {string[]} */
  #signing = [];
  #signed = Promise.resolve();

  /** @param {string} name @param {bigint} boot */
  constructor(name, boot) {
    this.#name = name;
    this.boot = boot;
  }

  /**
   * From now on sign hellos, plans and contributions, and add a MAC to compact contributions. Without `mac`, which
   * makes the MAC, no compact ones are sent. @param {import("./signing.js").Seal} seal @param {Mac | null} mac
   */
  sign(seal, mac) {
    this.#seal = seal;
    this.#mac = mac;
  }

  /** Whether contributions may be sent in compact form. */
  get isCompact() {
    return !this.#seal || this.#mac !== null;
  }

  /**
   * The presence message: the link sends it at each connection and on leaving, the broker when it has lost the device.
   * @param {boolean} online @param {boolean} [leaving]
   */
  presence(online, leaving = false) {
    const state = { boot: this.boot, online, leaving, paused: false };
    return { topic: this.#topic("state"), payload: encode(State, state), retain: true };
  }

  /** Tell that this device is paused, or that it may work again. @param {boolean} yes */
  paused(yes) {
    this.#publish("state", State, { boot: this.boot, online: true, leaving: false, paused: yes }, true);
  }

  /** Number of messages that the broker has not acknowledged yet. @param {string} [leaf] */
  unacknowledged(leaf = "") {
    const topic = leaf ? this.#topic(leaf) : "";
    const signing = this.#signing.filter((name) => !topic || name === topic).length;
    return signing + this.link.unacknowledged(topic);
  }

  /** Send a hello, and forget the last plan, which the receiver of the hello may not have. @param {any} hello */
  hello(hello) {
    this.#sentPlan = null;
    this.#publish("hello", Hello, { ...hello, task: this.task, key: this.key, tags: [], version: "" });
  }

  /**
   * Send a plan that differs from the last, before the update that it is for. The plan must not make the update late:
   * reasons that do not fit into `roomBytes` are left out, and the whole plan if it does not fit at all. A plan to
   * train nothing is not limited. @param {any} plan @param {number} roomBytes
   */
  plan(plan, roomBytes) {
    const passed = plan.reasons.map((/** @type {string} */ reason) => reason.split(" needs")[0]);
    const content = JSON.stringify([plan.kind, ...passed]);
    if (plan.kind && content === this.#sentPlan) return;
    const topic = this.#topic("plan");
    const fits = (/** @type {any} */ candidate) => packetBytes(topic, this.#sized(encode(Plan, candidate))) <= roomBytes;
    let shortened = plan;
    while (plan.kind && shortened && !fits(shortened)) shortened = shorter(shortened);
    if (!shortened) return;
    this.#publish("plan", Plan, shortened);
    this.#sentPlan = content;
  }

  /** @param {any} message */
  contribution(message) {
    this.#publish("contribution", Contribution, message);
  }

  /** Send a compact contribution to this run. @param {Uint8Array} payload @param {string} run */
  short(payload, run) {
    const topic = this.#topic("c");
    const mac = this.#mac;
    if (mac) this.#inTurn(topic, async () => withMac(payload, await mac(topic, run, payload)));
    else this.link.publish(topic, payload);
  }

  /** @param {any} get */
  ask(get) {
    this.#publish("get", Get, get);
  }

  /**
   * Send a block; one that is still on its way is not sent twice. @param {Uint8Array} sha @param {number} index
   * @param {Uint8Array} data
   */
  block(sha, index, data) {
    const topic = this.#topic(topics.block(sha, index));
    if (!this.link.unacknowledged(topic)) this.link.publish(topic, data);
  }

  /** @param {string} leaf @param {any} kind @param {any} message @param {boolean} [retain] */
  #publish(leaf, kind, message, retain = false) {
    const topic = this.#topic(leaf);
    const payload = encode(kind, message);
    const seal = SIGNED.has(leaf) ? this.#seal : null;
    if (seal) this.#inTurn(topic, () => seal(topic, payload));
    else if (this.#seal && leaf === "state") this.#inTurn(topic, async () => payload, retain); // a pause follows its hello
    else this.link.publish(topic, payload, retain);
  }

  /**
   * Publish a message that takes a moment to sign, in order. If signing fails nothing is sent: messages without an
   * answer are repeated later. @param {string} topic @param {() => Promise<Uint8Array>} make @param {boolean} [retain]
   */
  #inTurn(topic, make, retain = false) {
    this.#signing.push(topic);
    const message = this.#signed.then(async () => {
      const payload = await make().catch(() => null);
      this.#signing.shift();
      if (payload) this.link.publish(topic, payload, retain);
    });
    this.#signed = message.catch(() => {}); // a rejection would keep back all later messages
  }

  /** A payload of the size that this one has on the wire. @param {Uint8Array} payload */
  #sized(payload) {
    const signature = new Uint8Array(SIGNATURE_BYTES);
    return this.#seal ? encode(FromDevice, { signature, message: payload }) : payload;
  }

  /** @param {string} leaf */
  #topic(leaf) {
    return topics.up(this.#name, leaf);
  }
}

/** The plan with one reason less; null if it has none. @param {any} plan */
function shorter(plan) {
  const reasons = plan.reasons.filter((/** @type {string} */ reason) => reason !== AND_MORE);
  return reasons.length ? { ...plan, reasons: [...reasons.slice(0, -1), AND_MORE] } : null;
}
