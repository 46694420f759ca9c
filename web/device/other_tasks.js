/** Other tasks that are not over, where a device may go when its own is, as client/connection/task_directory.py. */

/** Of which so many are remembered, those heard of last: any of them will do. */
const TASKS = 64;

export class Elsewhere {
  /** @type {Set<string>} */
  #tasks = new Set();

  /** A task that is open. @param {string} task */
  add(task) {
    this.#tasks.delete(task);
    this.#tasks.add(task);
    const [oldest] = this.#tasks;
    if (this.#tasks.size > TASKS) this.#tasks.delete(oldest);
  }

  /** A task that is over. @param {string} task */
  delete(task) {
    this.#tasks.delete(task);
  }

  /** The first by its name, which is elsewhere no longer; empty where there is none. @returns {string} */
  take() {
    const [first = ""] = [...this.#tasks].sort();
    this.#tasks.delete(first);
    return first;
  }
}
