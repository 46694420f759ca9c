/**
 * The work gate: whether the owner's rules allow work now, and how long they have paused it
 * (device/policy/work_gate.py). Times in seconds.
 */

/**
 * The work gate. `clock` is the device's own. The program calls `pause` and `resume` with a reason, such as "the page
 * is hidden"; work is allowed while there is no reason to pause.
 */
export class WorkGate {
  #reasons = new Map();
  #lostS = 0;
  /** @type {number | null} */
  #sinceS = null;

  /** @param {() => number} clock */
  constructor(clock) {
    this.clock = clock;
  }

  /** Whether work is allowed. */
  get open() {
    return this.#reasons.size === 0;
  }

  /** Whether the link must be spared, so that nothing large is sent either. */
  get quiet() {
    return [...this.#reasons.values()].includes(true);
  }

  /** Why work is not allowed; empty if it is. */
  get reason() {
    return this.open ? "" : `paused: ${[...this.#reasons.keys()].join("; ")}`;
  }

  /** @param {string} reason @param {{quiet?: boolean}} [more] quiet: the reason concerns the link */
  pause(reason, { quiet = false } = {}) {
    this.#reasons.set(reason, quiet);
  }

  /** @param {string} reason one that was given to `pause`; others are ignored */
  resume(reason) {
    this.#reasons.delete(reason);
  }

  /** Work that has begun is paused until `wait` ends. @param {() => Promise<void>} wait */
  async held(wait) {
    this.#sinceS = this.clock();
    try {
      await wait();
    } finally {
      this.#lostS = this.lost();
      this.#sinceS = null;
    }
  }

  /** Seconds that work in progress has been paused so far. */
  lost() {
    return this.#lostS + (this.#sinceS === null ? 0 : this.clock() - this.#sinceS);
  }

  /** The clock of the work itself: it stops while work is paused. */
  worked() {
    return this.clock() - this.lost();
  }
}
