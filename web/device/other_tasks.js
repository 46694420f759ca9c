/** Notes other open tasks, which a device may join when its own is done (client/connection/other_tasks.py). */

/** Most tasks that are remembered, those heard of last: any of them will do. */
const TASKS = 64;

export class OtherTasks {
  /** @type {Set<string>} */
  #tasks = new Set();

  /** Note a task that is open. @param {string} task */
  add(task) {
    this.#tasks.delete(task);
    this.#tasks.add(task);
    const [oldest] = this.#tasks;
    if (this.#tasks.size > TASKS) this.#tasks.delete(oldest);
  }

  /** Forget a task that is done. @param {string} task */
  discard(task) {
    this.#tasks.delete(task);
  }

  /** Remove and return the first task by name; empty if there is none. @returns {string} */
  take() {
    const [first = ""] = [...this.#tasks].sort();
    this.#tasks.delete(first);
    return first;
  }
}
