/** Which contributions may go in few bytes: those like one that the aggregator has said it has. */

import { Contribution, encode } from "./messages.js";
import { MOST_BYTES, shortOf } from "./compact_round.js";

/** Kinds that send exactly, whatever the codec (strategies/names.py). */
export const EXACT = new Set(["zeroth-order", "class-means"]);

/** The last contribution that was sent whole, and whether it was received by who listens now. */
export class Brief {
  /** @type {any} */
  #last = null;
  /** @type {any} */
  #like = null;

  /** It goes whole: until it has its receipt, nothing is known to be known. @param {any} message */
  sends(message) {
    this.#last = message;
    this.#like = null;
  }

  /** It has been counted. @param {any} message */
  received(message) {
    if (message === this.#last && encode(Contribution, message).length <= MOST_BYTES) this.#like = message;
  }

  /** Who listens may be another. */
  forget() {
    this.#last = this.#like = null;
  }

  /**
   * In few bytes; null where it must go whole. What a codec leaves out of an update depends on what became of
   * the one before: where there is one, every update has its receipt. @param {any} message
   * @returns {Uint8Array | null}
   */
  of(message) {
    const like = this.#like;
    if (!like || message.boot !== like.boot || !EXACT.has(message.kind)) return null;
    return shortOf(message, like);
  }
}
