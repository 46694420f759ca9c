/** Whose offers this device acts on, as device_runtime/trust.py. */
import { MessageError, NotTrusted } from "./errors.js";
import { offerIn } from "./messages.js";
import { Pact, mapped, publicOf } from "./pact.js";
import { KEY_BYTES, Verifier } from "./signing.js";
import { decodeNext, parted } from "./small.js";

/** Runs of which the latest round is remembered. */
const RUNS = 64;

/** So many random bytes. @param {number} size */
const drawn = (size) => crypto.getRandomValues(new Uint8Array(size));

/**
 * Reads offers. With the key of an aggregator (32 bytes) only that one's, and no round twice over. Without a key
 * any offer is taken, signed or not.
 */
export class Trust {
  /** To say in a hello, so that the aggregator need not sign what it says in few bytes. */
  key = new Uint8Array();
  #verifier;
  #pact;
  #rounds = new Map();

  /** Rejects with NotTrusted for a key that is none. @param {Uint8Array} key empty: without */
  static async open(key, draw = drawn) {
    if (!key.length) return new Trust(null, null);
    const trust = new Trust(await Verifier.open(key), null);
    const own = draw(KEY_BYTES);
    try {
      trust.key = await publicOf(own);
    } catch {
      return trust; // no X25519 in this browser: it is told whole offers
    }
    trust.#pact = await Pact.agreed(own, mapped(key));
    return trust;
  }

  /** @private */
  constructor(verifier, pact) {
    this.#verifier = verifier;
    this.#pact = pact;
  }

  /** The next round of this run that came on this topic. Rejects with MessageError as `offer`. */
  async next(topic, run, payload) {
    const { said, word } = parted(payload);
    if (!this.#verifier) return decodeNext(said);
    if (!(await this.#pact?.holds(word, topic, run, said))) {
      throw new NotTrusted(
        `next round on ${topic} refused: it is not said to this device, for run '${run}', by the aggregator ` +
          "that it is enrolled with",
      );
    }
    const made = decodeNext(said);
    this.#rounds.set(run, Math.max(this.#rounds.get(run) ?? 0, made.round));
    return made;
  }

  /**
   * The offer that came on this topic. Rejects with MessageError, which says why it is not to be acted on. Rounds
   * of a run only go up: an earlier one is what somebody has kept, and sends again. Of a round that is `retained`
   * nobody makes more than that there is a task.
   */
  async offer(topic, payload, retained = false) {
    if (!this.#verifier) return offerIn(payload);
    const { offer } = await this.#verifier.open(topic, payload);
    const latest = this.#rounds.get(offer.run) ?? 0;
    this.#rounds.delete(offer.run);
    this.#rounds.set(offer.run, Math.max(latest, offer.round));
    while (this.#rounds.size > RUNS) this.#rounds.delete(this.#rounds.keys().next().value);
    if (offer.round > 0 && offer.round < latest && !(retained && !offer.done)) {
      throw new MessageError(
        `offer of round ${offer.round} refused: round ${latest} of this run was offered before`,
      );
    }
    return offer;
  }
}
