/** The worker that is the device, as the page sees it. */

const LEAVE_MS = 3000;

/**
 * @typedef {import("../crossing.js").Told} Told
 * @typedef {import("../crossing.js").Ask} Ask
 */

export class Device {
  /** @param {(told: any) => void} heard each message of the worker, guesses apart */
  constructor(heard) {
    this._worker = new Worker(new URL("../worker.js", import.meta.url), { type: "module" });
    this._guesses = new Map();
    this._left = () => {};
    this._worker.onmessage = ({ data }) => this._hear(data, heard);
    this._worker.onerror = (event) => {
      heard({ type: "stopped", text: event.message ?? "its program could not be loaded" });
    };
  }

  /** @param {Ask} message */
  ask(message) {
    this._worker.postMessage(message);
  }

  /** What the model takes one prepared sample for, a share for each label; null while there is no model. */
  guess(x) {
    const number = this._guesses.size ? Math.max(...this._guesses.keys()) + 1 : 0;
    return new Promise((resolve) => {
      this._guesses.set(number, resolve);
      this.ask({ do: "guess", number, x });
    });
  }

  /** Says farewell and ends. */
  async leave() {
    await Promise.race([
      new Promise((resolve) => {
        this._left = () => resolve(undefined);
        this.ask({ do: "leave" });
      }),
      new Promise((resolve) => setTimeout(resolve, LEAVE_MS)),
    ]);
    this._worker.terminate();
  }

  _hear(told, heard) {
    if (told.type === "guessed") {
      this._guesses.get(told.number)?.(told.shares);
      this._guesses.delete(told.number);
    } else if (told.type === "left") this._left();
    else heard(told);
  }
}
