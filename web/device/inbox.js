/** Queues the events of the link, each with its time of arrival. Part of device/agent/agent.py. */

/** @template E */
export class Inbox {
  #clock;
  /** @type {{event: E, came: number}[]} */
  #waiting = [];
  #isWoken = false;
  #wake = () => {};

  /** @param {() => number} clock in seconds */
  constructor(clock) {
    this.#clock = clock;
  }

  get isEmpty() {
    return this.#waiting.length === 0;
  }

  /** @param {E} event */
  put(event) {
    this.#waiting.push({ event, came: this.#clock() });
    this.#wake();
  }

  /** The oldest event with its time of arrival, or null. */
  next() {
    return this.#waiting.shift() ?? null;
  }

  /** End the current wait, or the next one. */
  wake() {
    this.#isWoken = true;
    this.#wake();
  }

  /** Wait until an event is here, `wake` is called, or so many seconds have passed. @param {number} seconds */
  async wait(seconds) {
    if (this.isEmpty && !this.#isWoken && seconds > 0) {
      await new Promise((resolve) => {
        const timer = setTimeout(resolve, 1e3 * seconds);
        this.#wake = () => {
          clearTimeout(timer);
          resolve(undefined);
        };
      });
    }
    this.#isWoken = false;
    this.#wake = () => {};
  }
}
