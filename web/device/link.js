/**
 * A device's MQTT connection, which reconnects by itself and reports its events in order (broker/wire/link.py). It uses
 * MQTT.js, over WebSockets in a browser, also over TCP in Node. Every session is clean. A PUBACK only says that the
 * broker has a message.
 *
 * Messages without a PUBACK are kept here, and sent again, in order, on the next connection.
 */
import { inBrowser, open } from "./connection.js";
import { disconnectReason, refusalReason, unreachableReason, unreadableReason } from "./diagnosis.js";
import { BrokerRefused, BrokerUnreachable, MessageError, oneLine } from "./errors.js";
import { DEFAULTS } from "./link_options.js";
import { ReconnectDelay } from "./link_timing.js";
import { MESSAGE_LIMIT } from "./messages.js";
import { packetBytes, qosOf } from "./packets.js";
import { PieceJoiner, isPiece } from "./pieces.js";
import { matches } from "./topics.js";

/** Seconds that `close` waits for its last messages to leave, and for the connection to end. */
const FAREWELL_S = 2;

const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** @typedef {import("./link_options.js").Will} Will */

export class Link {
  /** Bytes of PUBLISH packets as they are on the wire, each message once. */
  bytesUp = 0;
  bytesDown = 0;
  #clientId;
  #options;
  #tell;
  #transport;
  #delay;
  #connection = null;
  #joiner = new PieceJoiner();
  /** Identifies the present attempt to connect; null while the link is closed. @type {object | null} */
  #attempt = null;
  #ready = false;
  #wasReady = false;
  #since = 0;
  #next = null;
  #answer = null;
  /** Messages that the broker has not acknowledged, in order. */
  #pending = new Set();

  /**
   * @param {import("./url.js").BrokerUrl} url @param {string} clientId
   * @param {(event: import("./link_options.js").Event) => void} tell called with each event, in order
   * @param {Partial<import("./link_options.js").Options>} options
   * @param {() => Promise<(url: string, options: object) => any>} transport loads `connect` of MQTT.js
   */
  constructor(url, clientId, tell, options = {}, transport = inBrowser) {
    this.url = url;
    this.#clientId = clientId;
    this.#tell = tell;
    this.#options = { ...DEFAULTS, ...options };
    this.#transport = transport;
    this.#delay = new ReconnectDelay(this.#options.reconnectS, this.#options.draw);
  }

  /** Whether the link is connected and subscribed, as far as it knows. */
  get connected() {
    return this.#ready;
  }

  /**
   * Connect for the first time; from then on the link reconnects by itself. Rejects with BrokerUnreachable when no
   * broker answers in time, BrokerRefused when it refuses. After either, `connect` may be called again.
   */
  async connect() {
    const { timeoutS } = this.#options;
    const answer = new Promise((resolve, reject) => {
      this.#answer = { resolve, reject };
    });
    const tooLate = new BrokerUnreachable(unreachableReason(this.url, "timed out"));
    const silence = setTimeout(() => this.#fail(tooLate), 1000 * timeoutS);
    this.#open();
    try {
      await answer;
    } catch (error) {
      this.#stop();
      throw error;
    } finally {
      clearTimeout(silence);
      this.#answer = null;
    }
  }

  /**
   * Send, now or when the link is back; never waits. Resolves to whether the broker has acknowledged the message, which
   * does not mean that a receiver has it: only a receipt does. Resolves to false at once when the queue is full, and
   * for a compact message (`qosOf`) while the link is down: it is never sent later. Throws MessageError for more than
   * MESSAGE_LIMIT bytes, which brokers drop silently, and for a topic with wildcards.
   * @returns {Promise<boolean>}
   */
  publish(topic, payload, retain = false) {
    if (payload.length > MESSAGE_LIMIT) {
      throw new MessageError(
        `${payload.length} bytes on ${topic}: at most ${MESSAGE_LIMIT} go into one message, send a Blob`,
      );
    }
    if (/[+#]/.test(topic)) throw new MessageError(`${topic} has wildcards: nothing can be sent there`);
    if (this.#pending.size >= this.#options.queueLimit) return Promise.resolve(false);
    const qos = qosOf(topic, payload);
    const live = this.#connection?.live;
    if (!qos && !live) return Promise.resolve(false);
    this.bytesUp += packetBytes(topic, payload, qos, this.url.mqtt5);
    return new Promise((resolve) => {
      const message = { topic, payload, retain, qos, resolve };
      if (qos) this.#pending.add(message);
      if (live) this.#send(message);
    });
  }

  /** Connect at once, if the link only waits for the time of its next attempt. */
  retry() {
    if (this.#next === null) return;
    clearTimeout(this.#next);
    this.#reopen();
  }

  /** How many messages the broker has not acknowledged: on this topic, or on any. */
  unacknowledged(topic = "") {
    if (!topic) return this.#pending.size;
    return [...this.#pending].filter((message) => message.topic === topic).length;
  }

  /** Publish `farewell`, if any, and disconnect; the broker then sends no last will. Waits FAREWELL_S at most. */
  async close(/** @type {Will | null} */ farewell = null) {
    if (farewell && this.#ready) this.publish(farewell.topic, farewell.payload, farewell.retain ?? true);
    const connection = this.#connection;
    let waited = 0;
    for (; this.#ready && this.#pending.size && waited < FAREWELL_S; waited += 0.02) await pause(0.02);
    this.#stop();
    for (const message of this.#pending) message.resolve(false);
    this.#pending.clear();
    for (; connection && !connection.gone && waited < FAREWELL_S; waited += 0.02) await pause(0.02);
  }

  /** Open a connection. Never rejects: a failure counts as a lost connection, unless the link was closed meanwhile. */
  async #open() {
    const { will, keepaliveS, timeoutS } = this.#options;
    const attempt = {};
    this.#attempt = attempt;
    try {
      const connect = await this.#transport();
      if (this.#attempt !== attempt) return;
      const settings = { clientId: this.#clientId, will, keepaliveS, timeoutS };
      this.#connection = open(connect, this.url, settings, {
        accepted: () => this.#accepted(),
        received: (topic, payload, packet) => this.#received(topic, payload, packet),
        lost: (why) => this.#onLost(why),
        refused: (error) => this.#refused(error),
      });
    } catch (error) {
      if (this.#attempt === attempt) this.#onLost(oneLine(error));
    }
  }

  #reopen() {
    this.#next = null;
    this.#open();
  }

  /** Send waiting messages while the broker answers the subscriptions; after a reconnection, greet before that. */
  #accepted() {
    const { subscriptions } = this.#options;
    const waiting = [...this.#pending];
    if (subscriptions.length) this.#connection.subscribe(subscriptions, (refused) => this.#subscribed(refused));
    if (this.#wasReady) this.#greet();
    for (const message of waiting) this.#send(message);
    if (!subscriptions.length) this.#nowReady();
  }

  /** @param {string[]} refused */
  #subscribed(refused) {
    if (refused.length) {
      const text = unreadableReason(this.url, refused);
      if (!this.#wasReady) return this.#fail(new BrokerRefused(text));
      this.#options.log("warning", text);
    }
    return this.#nowReady();
  }

  #nowReady() {
    const first = !this.#wasReady;
    this.#wasReady = this.#ready = true;
    if (first) this.#greet();
    this.#since = this.#options.clock();
    this.#tell({ kind: "connected", first });
    this.#answer?.resolve();
  }

  #greet() {
    const { greeting } = this.#options;
    if (greeting) this.publish(greeting.topic, greeting.payload, greeting.retain ?? true);
  }

  #send(message) {
    this.#connection.send(message, () => {
      this.#pending.delete(message);
      message.resolve(true);
    });
  }

  #received(topic, payload, { retain, qos }) {
    this.bytesDown += packetBytes(topic, payload, qos, this.url.mqtt5);
    if (!this.#options.subscriptions.some((subscription) => matches(subscription, topic))) return;
    if (!isPiece(topic)) {
      this.#tell({ kind: "received", topic, payload, retain });
      return;
    }
    const whole = retain ? null : this.#joiner.take(topic, payload);
    if (whole) this.#tell({ kind: "received", ...whole, retain });
  }

  #refused(error) {
    const text = refusalReason(this.url, error);
    if (!this.#wasReady) return this.#fail(new BrokerRefused(text));
    this.#options.log("warning", text);
    return this.#onLost("");
  }

  /** @param {string} why */
  #onLost(why) {
    if (!this.#wasReady) return this.#fail(new BrokerUnreachable(unreachableReason(this.url, why)));
    const wasReady = this.#ready;
    this.#ready = false;
    if (wasReady) this.#delay.lost(this.#options.clock() - this.#since);
    this.#next = setTimeout(() => this.#reopen(), 1000 * this.#delay.waitS());
    this.#delay.failed();
    const rival = this.#delay.crowded ? this.#clientId : "";
    if (wasReady) this.#tell({ kind: "disconnected", reason: disconnectReason(why, rival) });
    return undefined;
  }

  #fail(error) {
    this.#answer?.reject(error);
  }

  #stop() {
    this.#attempt = null;
    this.#ready = false;
    clearTimeout(this.#next);
    this.#next = null;
    this.#connection?.end({ orderly: this.#pending.size === 0 });
    this.#connection = null;
  }
}
