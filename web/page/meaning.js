/** Describes kinds of update in plain words: what is trained here, and what the bytes that are sent mean. */

import { bytes, count, plural } from "./format.js";

const KINDS = {
  full: {
    called: "whole model",
    does: "trains the whole model on your samples",
    sends: (values) => `${count(values)} numbers: the whole model as it is after training`,
  },
  peft: {
    called: "small part",
    does: "trains a small part of the model, and leaves the rest as it is",
    sends: (values, form) => `${count(values)} numbers: ${PARTS[form] ?? "the small part that was trained"}`,
  },
  "entropy-subset": {
    called: "upper part",
    does: "trains the upper part of the model on those of your samples that it is least sure of",
    sends: (values) => `${count(values)} numbers: the upper part of the model after training`,
  },
  "few-shot": {
    called: "last layer",
    does: "trains the model's last layer on a few samples of each class",
    sends: (values) => `${count(values)} numbers: the last layer of the model`,
  },
  "zeroth-order": {
    called: "random changes",
    does: "tries small random changes of the model, without training it, and looks whether it gets better",
    sends: (values) => `${plural(values, "number")}: how much better or worse each random change made it`,
  },
  "class-means": {
    called: "sums by class",
    does: "adds up what the model sees in the samples of each class",
    sends: (values) => `${count(values)} numbers: sums of what the model sees, and how many samples each class has`,
  },
};

const PARTS = { bias: "the biases of the model", head: "the last layer of the model" };

/** What this device does in a round. @param {string} label of a kind, with its form: "entropy-subset 25%" */
export function does(label) {
  const kind = label.split(" ")[0];
  return KINDS[kind] ? `This device ${KINDS[kind].does}.` : `This device sends an update of kind ${label}.`;
}

/** A short name for a kind. @param {string} label of a kind, with its form */
export const called = (label) => KINDS[label.split(" ")[0]]?.called ?? label;

/**
 * Why this kind and nothing richer. @param {{label: string, straggler: boolean,
 *   rows: {kind: string, why: string}[]}} plan
 */
export function verdict({ label, straggler, rows }) {
  if (!label) return "Nothing fits here this time: this device sits the round out.";
  if (!straggler) return "This device could train the whole model in time.";
  const why = rows.find(({ kind }) => kind === "full")?.why;
  return `The whole model is too much for this device this time${why ? ` (${why})` : ""}, so it does what fits.`;
}

/**
 * Describes what was sent. @param {{kind: string, form: string, bytesUp: number, values: number,
 *   leastDevices: number}} made
 */
export function sends({ kind, form, bytesUp, values, leastDevices }) {
  const what = `${bytes(bytesUp)}, ${KINDS[kind]?.sends(values, form) ?? plural(values, "number")}`;
  return leastDevices ? `${what}; masked, so that only sums of ${leastDevices} devices or more can be read` : what;
}

/** What became of a contribution. @param {{status: string, reason: string}} receipt */
export function became({ status, reason }) {
  const meanings = {
    accepted: "received, and counted",
    duplicate: "received before, counted once",
    late: "came too late for its round",
    refused: `refused: ${reason}`,
  };
  return meanings[status] ?? status;
}
