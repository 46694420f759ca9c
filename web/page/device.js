/** The page's side of the worker that runs the device; starts another one if the program could not be loaded. */

import { backoff } from "../device/link_timing.js";

const LEAVE_MS = 3000;
/** Seconds before the program is loaded again for the first time, and at most. */
const AGAIN_S = /** @type {[number, number]} */ ([2, 60]);

/**
 * @typedef {import("../rpc.js").WorkerMessage} WorkerMessage
 * @typedef {import("../rpc.js").PageRequest} PageRequest
 * @typedef {import("../rpc.js").Settings} Settings
 */

export class Device {
  /**
   * @param {Settings} settings @param {(told: any) => void} heard called with each message of the worker but guesses;
   *   `unloaded` gets `wait`, the seconds before the program is loaded again
   */
  constructor(settings, onMessage) {
    this._onMessage = onMessage;
    /** Messages that another worker must be sent, too. @type {Map<string, PageRequest>} */
    this._resent = new Map([["start", { do: "start", settings }]]);
    this._guesses = new Map();
    this._number = 0;
    this._failures = 0;
    this._ended = false;
    this._left = () => {};
    this._begin();
  }

  /** @param {PageRequest} message */
  ask(message) {
    if (message.do === "pause") this._resent.set(`pause ${message.why}`, message);
    if (message.do === "resume") this._resent.delete(`pause ${message.why}`);
    if (message.do === "battery") this._resent.set("battery", message);
    this._worker?.postMessage(message);
  }

  /** The model's guess for one prepared sample: a share for each label; null while there is no model. */
  guess(x) {
    if (!this._worker) return Promise.resolve(null);
    const number = this._number++;
    return new Promise((resolve) => {
      this._guesses.set(number, resolve);
      this.ask({ do: "guess", number, x });
    });
  }

  /** Ends the worker after its farewell. */
  async leave() {
    this._ended = true;
    if (!this._worker) return;
    await Promise.race([
      new Promise((resolve) => {
        this._left = () => resolve(undefined);
        this.ask({ do: "leave" });
      }),
      new Promise((resolve) => setTimeout(resolve, LEAVE_MS)),
    ]);
    this._worker?.terminate();
  }

  _begin() {
    if (this._ended) return;
    /** @type {Worker | null} */
    this._worker = new Worker(new URL("../worker.js", import.meta.url), { type: "module" });
    this._worker.onmessage = ({ data }) => this._hear(data);
    this._worker.onerror = ({ message }) => {
      if (!message) this._again(""); // one of its imports could not be loaded
      else this._onMessage({ type: "stopped", text: message });
    };
    for (const message of this._resent.values()) this._worker.postMessage(message);
  }

  _hear(message) {
    if (message.type === "guessed") {
      this._guesses.get(message.number)?.(message.shares);
      this._guesses.delete(message.number);
    } else if (message.type === "left") this._left();
    else if (message.type === "unloaded") this._again(message.text);
    else {
      if (message.type === "task") this._failures = 0;
      this._onMessage(message);
    }
  }

  /** Starts another worker after a while. @param {string} why */
  _again(why) {
    this._worker?.terminate();
    this._worker = null;
    for (const resolve of this._guesses.values()) resolve(null);
    this._guesses.clear();
    this._left();
    const wait = backoff(this._failures++, AGAIN_S, 0);
    this._onMessage({ type: "link", connected: false, reason: "" });
    this._onMessage({ type: "unloaded", text: why, wait });
    setTimeout(() => this._begin(), 1000 * wait);
  }
}
