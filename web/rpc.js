/**
 * What crosses between the page and the worker that is the device: the page asks (`do`), the worker tells (`type`).
 * Samples do not cross: both have them from the same storage, which the page alone writes.
 *
 * @typedef {import("./device/telling.js").Happening} Happening
 * @typedef {{url: string, user: string, password: string, gateway: string}} Broker ws or wss; user and password may
 *   be empty; `gateway`: the same broker at the page's own address, or empty
 * @typedef {{name: string, token: string, broker: Broker, key: string, task: string}} Settings of a device: its
 *   name; the `fl1.` token of one that was enrolled, or empty; then the broker, and the aggregator's public key in
 *   hex digits, or empty; the task that it is here for, or empty: whichever there is
 *
 * @typedef {{do: "start", settings: Settings}} Start
 * @typedef {{do: "pause", why: string}} Pause until `resume` with the same reason
 * @typedef {{do: "resume", why: string}} Resume
 * @typedef {{do: "battery", percent: number, plugged: boolean}} Battery
 * @typedef {{do: "samples", keys: string[]}} SamplesChanged what is stored has changed, in these files
 * @typedef {{do: "guess", number: number, x: Float32Array}} Guess one prepared sample; answered by `guessed`
 * @typedef {{do: "leave"}} Leave say farewell and end; answered by `left`
 * @typedef {Start | Pause | Resume | Battery | SamplesChanged | Guess | Leave} Ask
 *
 * @typedef {{type: "guessed", number: number, shares: number[] | null}} Guessed of each label; null: no model yet
 * @typedef {{type: "stopped", text: string}} Stopped the device has ended, for what it cannot mend
 * @typedef {{type: "unloaded", text: string}} Unloaded a part of its program does not come: another worker may have it
 * @typedef {{type: "left"}} Left
 * @typedef {Happening | Guessed | Stopped | Unloaded | Left} Told
 */

/** In IndexedDB: what the device keeps, and the samples that the page keeps for it. */
export const DEVICE = "device-runtime";
export const SAMPLES = "device-runtime-samples";
