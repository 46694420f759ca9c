/** How long to wait before connecting again, and what short connections mean, as broker/wire/backoff.py. */

/** Seconds. A connection that lasted less did not count: the back-off goes on growing. */
const STEADY_S = 5;
/** Short connections in a row after which somebody else with our name is suspected. */
const SUSPICIOUS = 2;

/**
 * Seconds before the next attempt: doubling from the first bound to the second, less up to a half. `draw` is
 * uniform in [0, 1): a fleet that lost its broker at one instant must not return at one.
 * @param {number} failures @param {[number, number]} bounds seconds @param {number} draw
 */
export function backoff(failures, [first, most], draw) {
  return Math.min(most, first * 2 ** Math.min(failures, 32)) * (1 - draw / 2);
}

/** The attempts of one link. */
export class Patience {
  #bounds;
  #draw;
  #failures = 0;
  #short = 0;

  /** @param {[number, number]} bounds wait before the first, and at most, in seconds @param {() => number} draw */
  constructor(bounds, draw) {
    this.#bounds = bounds;
    this.#draw = draw;
  }

  /** Seconds before the next attempt, drawn anew each time. */
  wait() {
    return backoff(this.#failures, this.#bounds, this.#draw());
  }

  /** An attempt came to nothing. */
  failed() {
    this.#failures += 1;
  }

  /** A connection that was ready ended after so many seconds. */
  lost(lasted) {
    if (lasted >= STEADY_S) this.#failures = this.#short = 0;
    else this.#short += 1;
  }

  /** Whether connections end as they do when two clients of one name throw each other out. */
  get crowded() {
    return this.#short >= SUSPICIOUS;
  }
}
