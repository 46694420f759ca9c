/** Passes messages of the link to their handlers, by topic. Part of client/agent.py. */

import { UnknownRoundBefore } from "./errors.js";
import { Get, decode } from "./messages.js";
import { opened } from "./offers.js";
import { isCompactOffer } from "./packets.js";
import * as topics from "./topics.js";

/** @typedef {{topic: string, payload: Uint8Array, retain: boolean}} Received */

export class MessageRouter {
  #log;
  #parts;

  /**
   * @param {(level: string, text: string) => void} log
   * @param {{rounds: import("./duty.js").DeviceRounds, taskOffers: import("./task_offers.js").TaskOffers,
   *   offerStream: import("./offer_stream.js").OfferStream, trust: import("./trust.js").Trust,
   *   messages: import("./presence.js").DeviceMessages}} parts
   */
  constructor(log, parts) {
    this.#log = log;
    this.#parts = parts;
  }

  /**
   * Handle a message that came at the time `came`. Throws MessageError, TopicError for an invalid one.
   * @param {Received} message @param {number} came in seconds
   */
  async receive(message, came) {
    try {
      await (topics.isOffer(message.topic) ? this.#offered(message, came) : this.#told(message, came));
    } catch (error) {
      if (!(error instanceof UnknownRoundBefore)) throw error;
      this.#askWholeOffer(error);
    }
  }

  /** Handle an offer to all devices, unless it is a compact offer of another task. */
  async #offered(/** @type {Received} */ message, /** @type {number} */ came) {
    const isOfOtherTask = isCompactOffer(message.payload) && message.topic !== topics.offer(this.#parts.messages.task);
    if (!isOfOtherTask) await this.#hear(message, came);
  }

  /** Handle a message to this device. */
  async #told(/** @type {Received} */ message, /** @type {number} */ came) {
    const { rounds, taskOffers } = this.#parts;
    const { leaf, sha, index } = topics.parse(message.topic);
    if (leaf === "task") await taskOffers.take(await this.#opened(message, came));
    else if (leaf === "n") await this.#hear({ ...message, retain: false }, came);
    else if (leaf === "receipt") await rounds.settle(await this.#parts.trust.receipt(message.topic, message.payload));
    else if (leaf === "get") await rounds.answer(decode(Get, message.payload));
    else if (leaf === "block") await rounds.block(sha, index, message.payload);
  }

  async #hear(/** @type {Received} */ message, /** @type {number} */ came) {
    const heard = await this.#opened(message, came);
    await this.#parts.taskOffers.hear(heard, { retained: message.retain, over: this.#parts.offerStream.over });
  }

  async #opened(/** @type {Received} */ { topic, payload, retain }, /** @type {number} */ came) {
    const { offerStream, messages } = this.#parts;
    return opened(await offerStream.offer(topic, payload, retain, messages.task), came);
  }

  /** Ask for the whole offer, unless a hello already waits for its answer. */
  #askWholeOffer(/** @type {Error} */ lost) {
    const { rounds } = this.#parts;
    if (rounds.helloRetry.waiting) return;
    this.#log("info", lost.message);
    rounds.hello();
  }
}
