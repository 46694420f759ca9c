/**
 * Options and events of a Link.
 *
 * @typedef {{ topic: string, payload: Uint8Array, retain?: boolean }} Will
 *   A retained message for later: the last will, which the broker sends if we vanish, or a greeting or farewell.
 * @typedef {{ kind: "connected", first: boolean } | { kind: "disconnected", reason: string }
 *   | { kind: "received", topic: string, payload: Uint8Array, retain: boolean }} Event
 *   Retained messages may come just before "connected".
 * @typedef {typeof DEFAULTS} Options
 */

/**
 * Defaults; times in seconds. `greeting` is published at each connection before any other message. `queueLimit` bounds
 * the messages that wait for their PUBACK.
 */
export const DEFAULTS = {
  subscriptions: /** @type {string[]} */ ([]),
  keepaliveS: 30,
  reconnectS: /** @type {[number, number]} */ ([0.5, 30]),
  timeoutS: 10,
  queueLimit: 4096,
  will: /** @type {Will | null} */ (null),
  greeting: /** @type {Will | null} */ (null),
  log: (/** @type {string} */ _level, /** @type {string} */ _line) => {},
  draw: Math.random,
  clock: () => performance.now() / 1000,
};
