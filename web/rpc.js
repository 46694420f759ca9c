/**
 * Messages between the page and the worker that runs the device: requests of the page have `do`, messages of the worker
 * `type`. Samples are not sent: both read them from the same storage, which only the page writes.
 *
 * @typedef {import("./device/event_reporter.js").DeviceEvent} DeviceEvent
 * @typedef {{url: string, user: string, password: string, gateway: string}} Broker ws or wss; user and password may
 *   be empty; `gateway`: the same broker at the page's own address, or empty
 * @typedef {{name: string, token: string, broker: Broker, key: string, task: string}} Settings of a device: its
 *   name; its `fl1.` token if it was enrolled, else empty; without a token the broker, and the aggregator's public key
 *   in hex digits, or empty; the task to join, empty for any
 *
 * @typedef {{do: "start", settings: Settings}} Start
 * @typedef {{do: "pause", why: string}} Pause until `resume` with the same reason
 * @typedef {{do: "resume", why: string}} Resume
 * @typedef {{do: "battery", percent: number, plugged: boolean}} Battery
 * @typedef {{do: "samples", keys: string[]}} SamplesChanged what is stored has changed, in these files
 * @typedef {{do: "guess", number: number, x: Float32Array}} Guess one prepared sample; answered by `guessed`
 * @typedef {{do: "leave"}} Leave send the farewell and end; answered by `left`
 * @typedef {Start | Pause | Resume | Battery | SamplesChanged | Guess | Leave} PageRequest
 *
 * @typedef {{type: "guessed", number: number, shares: number[] | null}} Guessed a share for each label; null: no model
 *   yet
 * @typedef {{type: "stopped", text: string}} Stopped the device has ended because of an error
 * @typedef {{type: "unloaded", text: string}} Unloaded a part of the program could not be loaded; another worker may
 *   succeed
 * @typedef {{type: "left"}} Left
 * @typedef {DeviceEvent | Guessed | Stopped | Unloaded | Left} WorkerMessage
 */

/** Databases in IndexedDB: of the device's files, and of the samples that the page stores for it. */
export const DEVICE = "device-runtime";
export const SAMPLES = "device-runtime-samples";
