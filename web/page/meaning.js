/** Kinds of update in plain words: what is trained here, and what the bytes that are sent mean. */

import { bytes, count, plural } from "./format.js";

const KINDS = {
  full: {
    does: "trains the whole model on your samples",
    sends: (values) => `${count(values)} numbers: the whole model as it is after training`,
  },
  peft: {
    does: "trains a small part of the model, and leaves the rest as it is",
    sends: (values, form) => `${count(values)} numbers: ${PARTS[form] ?? "the small part that was trained"}`,
  },
  "entropy-subset": {
    does: "trains the upper part of the model on those of your samples that it is least sure of",
    sends: (values) => `${count(values)} numbers: the upper part of the model after training`,
  },
  "few-shot": {
    does: "trains the model's last layer on a few samples of each class",
    sends: (values) => `${count(values)} numbers: the last layer of the model`,
  },
  "zeroth-order": {
    does: "tries small random changes of the model, without training it, and looks whether it gets better",
    sends: (values) => `${plural(values, "number")}: how much better or worse each random change made it`,
  },
  "class-means": {
    does: "adds up what the model sees in the samples of each class",
    sends: (values) => `${count(values)} numbers: sums of what the model sees, and how many samples each class has`,
  },
};

const PARTS = { bias: "the biases of the model", head: "the last layer of the model" };

/** What is done in a round. @param {string} label of a kind, with its form: "entropy-subset 25%" */
export function does(label) {
  const kind = label.split(" ")[0];
  return KINDS[kind] ? `This device ${KINDS[kind].does}.` : `This device sends an update of kind ${label}.`;
}

/** What was sent. @param {{kind: string, form: string, bytesUp: number, values: number}} made */
export function sends({ kind, form, bytesUp, values }) {
  return `${bytes(bytesUp)}: ${KINDS[kind]?.sends(values, form) ?? plural(values, "number")}`;
}

/** What became of it. @param {{status: string, reason: string}} receipt */
export function became({ status, reason }) {
  const known = {
    accepted: "received, and counted",
    duplicate: "received before, counted once",
    late: "came too late for its round",
    refused: `refused: ${reason}`,
  };
  return known[status] ?? status;
}
