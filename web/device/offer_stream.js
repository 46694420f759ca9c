/** Turns messages on offer topics into whole offers. Part of device/connection/offers.py. */
import { fullOffer, isCompactOffer } from "./compact_round.js";
import { MessageError, UnknownRoundBefore } from "./errors.js";
import { isOffer, offer as offerTopic } from "./topics.js";

/** Tasks whose latest offer is remembered. */
const TASKS = 64;

/** Remembers the latest offer of each task, as a compact offer only says what is new. */
export class OfferStream {
  /** Whether the last message ends the wait for receipts of earlier rounds. */
  over = false;
  #trust;
  #latest = new Map();

  /** @param {import("./trust.js").Trust} trust decides whose offers count */
  constructor(trust) {
    this.#trust = trust;
  }

  /**
   * The offer that came, or that a compact message derives from the one before. `task` is used where the topic does not
   * name one. Rejects with MessageError for a message that must not be acted on, UnknownRoundBefore if the whole offer
   * must be asked for.
   * @param {string} topic @param {Uint8Array} payload
   */
  async offer(topic, payload, retained = false, task = "") {
    this.over = false;
    if (retained && !isOffer(topic)) {
      throw new MessageError(`unexpected retained offer on ${topic}`);
    }
    if (isCompactOffer(payload)) {
      const of = isOffer(topic) ? topic.slice(offerTopic("").length) : task;
      return this.#next(of, topic, payload);
    }
    const offer = await this.#trust.offer(topic, payload, retained);
    const latest = this.#latest.get(offer.task);
    if (!(retained && latest?.run === offer.run && offer.round < latest.round)) this.#keep(offer);
    return offer;
  }

  async #next(task, topic, payload) {
    const before = this.#latest.get(task);
    if (!before) throw new UnknownRoundBefore(`a round of '${task}' is open that follows one which is not known here`);
    const next = await this.#trust.next(topic, before.run, payload);
    if (next.round <= before.round) throw new MessageError(`round ${next.round} of '${task}' was heard of before`);
    this.#latest.delete(task); // if the compact offer does not follow it, a whole offer must be asked for
    const offer = await fullOffer(before, next);
    this.#keep(offer);
    this.over = next.over;
    return offer;
  }

  #keep(offer) {
    this.#latest.delete(offer.task);
    this.#latest.set(offer.task, offer);
    while (this.#latest.size > TASKS) this.#latest.delete(this.#latest.keys().next().value);
  }
}
