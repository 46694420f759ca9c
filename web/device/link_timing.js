/** Delays between reconnections (broker/wire/link_events.py). */

/** Seconds. After a connection that lasted less, the back-off goes on growing. */
const STEADY_S = 5;
/** Short connections in a row after which another client with our name is suspected. */
const SUSPICIOUS = 2;

/**
 * Seconds before the next attempt: doubling from the first bound to the second, less up to a half. `draw` is
 * uniform in [0, 1): devices that lost their broker at one moment must not all return at one.
 * @param {number} failures @param {[number, number]} bounds seconds @param {number} draw
 */
export function backoff(failures, [first, most], draw) {
  return Math.min(most, first * 2 ** Math.min(failures, 32)) * (1 - draw / 2);
}

/** The delays before the connection attempts of one link. */
export class ReconnectDelay {
  #bounds;
  #draw;
  #failures = 0;
  #short = 0;

  /** @param {[number, number]} bounds seconds before the first attempt, and at most @param {() => number} draw */
  constructor(bounds, draw) {
    this.#bounds = bounds;
    this.#draw = draw;
  }

  /** Seconds before the next attempt, drawn anew each time. */
  waitS() {
    return backoff(this.#failures, this.#bounds, this.#draw());
  }

  /** Note that an attempt failed. */
  failed() {
    this.#failures += 1;
  }

  /** Note that a connection that was ready ended after `lasted` seconds. */
  lost(lasted) {
    if (lasted >= STEADY_S) this.#failures = this.#short = 0;
    else this.#short += 1;
  }

  /** Whether connections end as they do when two clients of one name disconnect each other. */
  get crowded() {
    return this.#short >= SUSPICIOUS;
  }
}
