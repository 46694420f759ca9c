/**
 * When to say hello again: one that is lost would leave the device waiting for an offer that nobody sends.
 */

/** Seconds without answer, and with nothing on its way to the broker, after which something is said again. */
export const RESEND_S = 10;
/** The waits double up to this. */
export const MAX_RESEND_S = 60;

/** Hellos and their answers. Times in seconds. */
export class Greeting {
  #sinceS = Infinity;
  #waitS = RESEND_S;
  #underWay;

  /** @param {() => number} underWay how many hellos have not reached the broker for sure yet */
  constructor(underWay) {
    this.#underWay = underWay;
  }

  /** Whether an answer is awaited. */
  get waiting() {
    return this.#sinceS < Infinity;
  }

  /** A hello goes out. @param {number} now */
  said(now) {
    this.#sinceS = now;
  }

  /** An offer has come. */
  answered() {
    this.#sinceS = Infinity;
    this.#waitS = RESEND_S;
  }

  /** Whether it is to be said again: after waits that double, of silence on the link. @param {number} now */
  due(now) {
    if (!this.waiting) return false;
    if (this.#underWay()) this.#sinceS = now;
    if (now - this.#sinceS < this.#waitS) return false;
    this.#waitS = Math.min(2 * this.#waitS, MAX_RESEND_S);
    return true;
  }
}
