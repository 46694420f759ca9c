/** Converts offers, contributions and errors to inputs of the device's state machine (device/agent/machine_inputs.py). */

import { BlobError, StaleBase, WorkStopped } from "./errors.js";
import { hexOf } from "./messages.js";
import { firstState, waiting } from "./turn.js";

/** The state of a device that has just started, with what an earlier process left. */
export function stateOf(/** @type {string} */ task, /** @type {import("./outbox.js").Outbox} */ outbox) {
  const { settled } = outbox;
  return firstState({
    rules: { task, keeps: true, leaves: false },
    task,
    outbox: [...outbox].map(entryOf),
    settled: settled ? [settled.run, settled.round] : ["", 0],
  });
}

/** The offers that commands may name. @param {import("./turn.js").DeviceState} state */
export function offersOf({ open, newest, training, worked_on: workedOn, final, past }) {
  return [open, newest, training, workedOn, final, past].filter(Boolean);
}

/** @param {number} number @param {import("./offers.js").OpenRound} opened @returns {import("./turn.js").Offered} */
export function offeredOf(number, { offer, closes }) {
  const { task, run, round, done, base, bundle, family } = offer;
  const named = { number, task, run, round, closes, done, bundles: hexOf(bundle) };
  return { ...named, checkpoint: base.checkpoint.map(hexOf), at: base.at, family: family.length > 0 };
}

/** A contribution that waits. @param {any} message */
export function entryOf({ seq, task, run, round, num_examples: samples, blob }) {
  return waiting({ seq, task, run, round, samples, fetched: Boolean(blob) });
}

/** Why work has failed, as WorkFailed says it. An unexpected error ends the round. @param {unknown} error */
export function whyOf(error) {
  if (error instanceof BlobError) return "blob";
  if (error instanceof StaleBase) return "stale base";
  return error instanceof WorkStopped ? "stopped" : "left out";
}
