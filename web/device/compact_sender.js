/** Decides which contributions are sent in compact form. Part of device/delivery/sending.py. */

import { MOST_BYTES, compactContribution } from "./compact_round.js";
import { Contribution, encode } from "./messages.js";

/** Kinds that send exact values and take no codec (strategies/kinds/names.py). */
export const EXACT_KINDS = new Set(["zeroth-order", "class-means"]);

/** Knows the last contribution that was sent whole, and whether this aggregator has received it. */
export class CompactSender {
  /** @type {any} */
  #last = null;
  /** @type {any} */
  #like = null;

  /** A contribution is sent whole: until its receipt comes, the aggregator may not have it. @param {any} message */
  sends(message) {
    this.#last = message;
    this.#like = null;
  }

  /** The contribution has been accepted. @param {any} message */
  received(message) {
    if (message === this.#last && !message.mask && encode(Contribution, message).length <= MOST_BYTES) this.#like = message;
  }

  /** The aggregator may be another process now. */
  forget() {
    this.#last = this.#like = null;
  }

  /**
   * The contribution in compact form; null if it must go whole, as masked ones do. What a codec leaves out of an update
   * depends on the fate of the one before, so with such a codec every update goes whole, for its receipt.
   * @param {any} message
   * @returns {Uint8Array | null}
   */
  of(message) {
    const like = this.#like;
    if (!like || message.mask || message.boot !== like.boot || !EXACT_KINDS.has(message.kind)) return null;
    return compactContribution(message, like);
  }
}
