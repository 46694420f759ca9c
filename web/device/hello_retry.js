/**
 * Repeats a hello until an offer answers it (client/connection/hello_retry.py). If a hello were lost, the device would
 * wait for an offer that nobody sends.
 */

/** Seconds without an answer, and with nothing on its way to the broker, after which a message is sent again. */
export const RESEND_S = 10;
/** Seconds. The waits double up to this. */
export const MAX_RESEND_S = 60;

/** Tracks hellos and their answers. Times in seconds. */
export class HelloRetry {
  #sinceS = Infinity;
  #waitS = RESEND_S;
  #unacknowledged;

  /** @param {() => number} unacknowledged counts hellos that the broker has not acknowledged */
  constructor(unacknowledged) {
    this.#unacknowledged = unacknowledged;
  }

  /** Whether an answer is awaited. */
  get waiting() {
    return this.#sinceS < Infinity;
  }

  /** A hello is sent. @param {number} now */
  sent(now) {
    this.#sinceS = now;
  }

  /** An offer has come. */
  answered() {
    this.#sinceS = Infinity;
    this.#waitS = RESEND_S;
  }

  /** Whether to repeat the hello: after silence on the link, with waits that double. @param {number} now */
  due(now) {
    if (!this.waiting) return false;
    if (this.#unacknowledged()) this.#sinceS = now;
    if (now - this.#sinceS < this.#waitS) return false;
    this.#waitS = Math.min(2 * this.#waitS, MAX_RESEND_S);
    return true;
  }
}
