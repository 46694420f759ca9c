/** The worker that is the device, as the page sees it; another, where a part of its program does not come. */

import { backoff } from "../device/backoff.js";

const LEAVE_MS = 3000;
/** Seconds before its program is loaded again for the first time, and at most. */
const AGAIN_S = /** @type {[number, number]} */ ([2, 60]);

/**
 * @typedef {import("../rpc.js").Told} Told
 * @typedef {import("../rpc.js").Ask} Ask
 * @typedef {import("../rpc.js").Settings} Settings
 */

export class Device {
  /** @param {Settings} settings @param {(told: any) => void} heard each message of the worker, guesses apart;
   *   `unloaded` with `wait`, the seconds before it is tried again */
  constructor(settings, heard) {
    this._heard = heard;
    /** What another worker is told, too. @type {Map<string, Ask>} */
    this._standing = new Map([["start", { do: "start", settings }]]);
    this._guesses = new Map();
    this._number = 0;
    this._failures = 0;
    this._ended = false;
    this._left = () => {};
    this._begin();
  }

  /** @param {Ask} message */
  ask(message) {
    if (message.do === "pause") this._standing.set(`pause ${message.why}`, message);
    if (message.do === "resume") this._standing.delete(`pause ${message.why}`);
    if (message.do === "battery") this._standing.set("battery", message);
    this._worker?.postMessage(message);
  }

  /** What the model takes one prepared sample for, a share for each label; null while there is no model. */
  guess(x) {
    if (!this._worker) return Promise.resolve(null);
    const number = this._number++;
    return new Promise((resolve) => {
      this._guesses.set(number, resolve);
      this.ask({ do: "guess", number, x });
    });
  }

  /** Says farewell and ends. */
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
      if (!message) this._again(""); // of what it imports, something did not come
      else this._heard({ type: "stopped", text: message });
    };
    for (const message of this._standing.values()) this._worker.postMessage(message);
  }

  _hear(told) {
    if (told.type === "guessed") {
      this._guesses.get(told.number)?.(told.shares);
      this._guesses.delete(told.number);
    } else if (told.type === "left") this._left();
    else if (told.type === "unloaded") this._again(told.text);
    else {
      if (told.type === "task") this._failures = 0;
      this._heard(told);
    }
  }

  /** Another worker, after a while. @param {string} why */
  _again(why) {
    this._worker?.terminate();
    this._worker = null;
    for (const resolve of this._guesses.values()) resolve(null);
    this._guesses.clear();
    this._left();
    const wait = backoff(this._failures++, AGAIN_S, 0);
    this._heard({ type: "link", connected: false, reason: "" });
    this._heard({ type: "unloaded", text: why, wait });
    setTimeout(() => this._begin(), 1000 * wait);
  }
}
