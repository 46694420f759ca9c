/** When a device may work, as it goes: its owner's word, and how long it held work up. Times in seconds. */

/**
 * `clock` is the device's own. Whoever speaks for the owner calls `pause` and `resume` with a reason, as "the
 * page is hidden": work may be done while there is none.
 */
export class Hours {
  #reasons = new Map();
  #lostS = 0;
  /** @type {number | null} */
  #sinceS = null;

  /** @param {() => number} clock */
  constructor(clock) {
    this.clock = clock;
  }

  /** Whether work may be done. */
  get open() {
    return this.#reasons.size === 0;
  }

  /** Whether the link is to be spared, so that nothing large is sent either. */
  get quiet() {
    return [...this.#reasons.values()].includes(true);
  }

  /** Why no work may be done; empty where it may. */
  get reason() {
    return this.open ? "" : `paused: ${[...this.#reasons.keys()].join("; ")}`;
  }

  /** @param {string} reason @param {{quiet?: boolean}} [more] quiet: it is about the link */
  pause(reason, { quiet = false } = {}) {
    this.#reasons.set(reason, quiet);
  }

  /** @param {string} reason that was given to `pause`; another is ignored */
  resume(reason) {
    this.#reasons.delete(reason);
  }

  /** Work that has begun stands still while `wait` goes on. @param {() => Promise<void>} wait */
  async held(wait) {
    this.#sinceS = this.clock();
    try {
      await wait();
    } finally {
      this.#lostS = this.lost();
      this.#sinceS = null;
    }
  }

  /** Seconds that begun work has stood still, so far. */
  lost() {
    return this.#lostS + (this.#sinceS === null ? 0 : this.clock() - this.#sinceS);
  }

  /** The clock of the work itself: it stands still when the work does. */
  worked() {
    return this.clock() - this.lost();
  }
}
