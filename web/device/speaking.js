/**
 * What a device says, and through what: its topics, its presence, and of its plans what there is time for.
 */

import { Contribution, Get, Hello, Plan, State, encode } from "./messages.js";
import { packetBytes } from "./packets.js";
import * as topics from "./topics.js";

/**
 * The part of link.js that is used here. `publish` sends now or when the link is back, and never waits;
 * `underWay`: messages that the broker has not acknowledged yet, on this topic or on any.
 * @typedef {{publish: (topic: string, payload: Uint8Array, retain?: boolean) => unknown,
 *   underWay: (topic?: string) => number, bytesUp: number, bytesDown: number}} Wire
 */

/** In place of reasons that are left out. */
export const AND_MORE = "...";

/** One life (`boot`) of the device `name`; it can speak once it has a `link`. */
export class Voice {
  /** The task that it is in, or asks for; empty: whichever there is. */
  task = "";
  /** By which an aggregator may agree with it (see pact.js). */
  key = new Uint8Array();
  /** @type {Wire} */
  link = { publish: () => false, underWay: () => 0, bytesUp: 0, bytesDown: 0 };
  #name;
  /** @type {string | null} */
  #planSaid = null;

  /** @param {string} name @param {bigint} boot */
  constructor(name, boot) {
    this.#name = name;
    this.boot = boot;
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
    return this.link.underWay(leaf ? this.#topic(leaf) : "");
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
    const fits = (/** @type {any} */ one) => packetBytes(this.#topic("plan"), encode(Plan, one)) <= roomBytes;
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

  /** A contribution in few bytes. @param {Uint8Array} payload */
  short(payload) {
    this.link.publish(this.#topic("c"), payload);
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
    this.link.publish(this.#topic(leaf), encode(kind, message), retain);
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
