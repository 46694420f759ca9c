/** Makes the messages that report a device's plan and its contribution (device/backend/base.py). */

import { whole } from "./rounding.js";

/**
 * The hello before the task is known here: `num_examples` 0 says that the device is not ready. @param {bigint} boot
 */
export function bareHello(boot) {
  return { boot, num_examples: 0, profile: "", memory_bytes: 0, engine: "", battery_percent: -1, task: "" };
}

/**
 * The decision and its reasons; kind "" when the device sits out. @param {any} offer
 * @param {any} decision see work.js
 */
export function planMessage(offer, { plan, reasons }) {
  const cost = plan.chosen?.cost;
  return {
    task: offer.task,
    round: offer.round,
    kind: plan.chosen?.label ?? "",
    seconds: cost?.seconds ?? 0,
    memory_bytes: cost?.peakMemoryBytes ?? 0,
    energy_j: cost?.energyJ ?? 0,
    reasons,
  };
}

/**
 * The plan of a device that trains nothing in a round, for these reasons.
 * @param {string} task @param {number} round @param {string[]} reasons
 */
export function satOutPlan(task, round, reasons) {
  return { task, round, kind: "", seconds: 0, memory_bytes: 0, energy_j: 0, reasons };
}

/**
 * The contribution with its content inline, or its blob; the sender fills in boot and seq. The loss of a masked one is
 * part of its content.
 * @param {any} offer @param {any} outcome see work.js; with a contribution @param {Uint8Array | any} body
 * @param {any} mask of a masked update; null: it is sent in the clear
 */
export function contributionMessage(offer, outcome, body, mask) {
  const update = outcome.contribution;
  const isInline = body instanceof Uint8Array;
  return {
    task: offer.task,
    run: offer.run,
    round: offer.round,
    boot: 0,
    seq: 0,
    kind: update.kind,
    num_examples: update.numExamples,
    metrics: {
      train_loss: mask ? NaN : update.trainLoss,
      train_time_ms: whole(1e3 * outcome.trainTimeS),
      energy_mj: whole(1e3 * outcome.energyJ),
      peak_memory_kib: Math.floor(outcome.peakMemoryBytes / 1024),
      epsilon_milli: 0,
      energy_source: "",
      energy_off_percent: Math.min(100, Math.max(1, whole(100 * outcome.uncertainty))),
    },
    body: isInline ? body : new Uint8Array(0),
    blob: isInline ? null : body,
    form: update.form,
    mask,
  };
}
