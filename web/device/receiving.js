/** Messages of the link, by their topics, to whom each is of use: of client/agent.py. */

import { UnknownRoundBefore } from "./errors.js";
import { Get, decode } from "./messages.js";
import { opened } from "./offers.js";
import { isNext } from "./packets.js";
import * as topics from "./topics.js";

/** @typedef {{topic: string, payload: Uint8Array, retain: boolean}} Said */

export class Receiving {
  #log;
  #parts;

  /**
   * @param {(level: string, text: string) => void} log
   * @param {{duty: import("./duty.js").Duty, attending: import("./attending.js").Attending,
   *   following: import("./offer_stream.js").Following, trust: import("./trust.js").Trust, voice: import("./presence.js").Voice}} parts
   */
  constructor(log, parts) {
    this.#log = log;
    this.#parts = parts;
  }

  /**
   * Take a message that came at this moment. Throws MessageError, TopicError for what cannot be meant.
   * @param {Said} said @param {number} came in seconds
   */
  async receive(said, came) {
    try {
      await (topics.isOffer(said.topic) ? this.#offered(said, came) : this.#told(said, came));
    } catch (error) {
      if (!(error instanceof UnknownRoundBefore)) throw error;
      this.#askAnew(error);
    }
  }

  /** To all. Not the next round of a task that the device is not in. */
  async #offered(/** @type {Said} */ said, /** @type {number} */ came) {
    const isElsewhere = isNext(said.payload) && said.topic !== topics.offer(this.#parts.voice.task);
    if (!isElsewhere) await this.#hear(said, came);
  }

  /** To this device. */
  async #told(/** @type {Said} */ said, /** @type {number} */ came) {
    const { duty, attending } = this.#parts;
    const { leaf, sha, index } = topics.parse(said.topic);
    if (leaf === "task") await attending.take(await this.#opened(said, came));
    else if (leaf === "n") await this.#hear({ ...said, retain: false }, came);
    else if (leaf === "receipt") await duty.settle(await this.#parts.trust.receipt(said.topic, said.payload));
    else if (leaf === "get") await duty.answer(decode(Get, said.payload));
    else if (leaf === "block") await duty.block(sha, index, said.payload);
  }

  async #hear(/** @type {Said} */ said, /** @type {number} */ came) {
    const heard = await this.#opened(said, came);
    await this.#parts.attending.hear(heard, { retained: said.retain, over: this.#parts.following.over });
  }

  async #opened(/** @type {Said} */ { topic, payload, retain }, /** @type {number} */ came) {
    const { following, voice } = this.#parts;
    return opened(await following.offer(topic, payload, retain, voice.task), came);
  }

  /** For the whole offer, unless that is asked for already. */
  #askAnew(/** @type {Error} */ lost) {
    const { duty } = this.#parts;
    if (duty.greeting.waiting) return;
    this.#log("info", lost.message);
    duty.hello();
  }
}
