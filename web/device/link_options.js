/**
 * What a Link is told, and tells.
 *
 * @typedef {{ topic: string, payload: Uint8Array, retain?: boolean }} Will
 *   A message for later: what the broker sends when we vanish, or what we send as we come or leave. Retained.
 * @typedef {{ kind: "connected", first: boolean } | { kind: "disconnected", reason: string }
 *   | { kind: "received", topic: string, payload: Uint8Array, retain: boolean }} Event
 *   What is retained for us may come just before "connected".
 * @typedef {typeof DEFAULTS} Options
 */

/** In seconds; `greeting` goes before all else at each connection; `queueLimit`: messages that wait for their PUBACK. */
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
