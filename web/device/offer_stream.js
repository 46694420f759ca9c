/** From what comes on the topics of offers to the offers that it stands for, as client/connection/offer_stream.py. */
import { UnknownRoundBefore, MessageError } from "./errors.js";
import { following, isNext } from "./compact_round.js";
import { isOffer, offer as offerTopic } from "./topics.js";

/** Of which the latest offer is remembered. */
const TASKS = 64;

/** The latest offer of each task, and what leads on from it. */
export class Following {
  /** Whether what is unreceipted of earlier rounds has nothing to wait for, as the last word was. */
  over = false;
  #trust;
  #latest = new Map();

  /** @param {import("./trust.js").Trust} trust says whose offers count */
  constructor(trust) {
    this.#trust = trust;
  }

  /**
   * The offer that came, or that follows from the one before: of `task`, where the topic does not say. Rejects with
   * MessageError for what is not to be acted on, UnknownRoundBefore where the whole offer is to be asked for.
   * @param {string} topic @param {Uint8Array} payload
   */
  async offer(topic, payload, retained = false, task = "") {
    this.over = false;
    if (retained && !isOffer(topic)) {
      throw new MessageError(`offer on ${topic} is marked as kept, which none there is`);
    }
    if (isNext(payload)) {
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
    const made = await this.#trust.next(topic, before.run, payload);
    if (made.round <= before.round) throw new MessageError(`round ${made.round} of '${task}' was heard of before`);
    this.#latest.delete(task); // it is asked for anew, if this does not lead on
    const offer = await following(before, made);
    this.#keep(offer);
    this.over = made.over;
    return offer;
  }

  #keep(offer) {
    this.#latest.delete(offer.task);
    this.#latest.set(offer.task, offer);
    while (this.#latest.size > TASKS) this.#latest.delete(this.#latest.keys().next().value);
  }
}
