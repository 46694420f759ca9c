/** Describes kinds of update in plain words: what is trained here, and what the bytes that are sent mean. */

import { bytes, count, plural } from "./format.js";

/**
 * What a kind does, in words for people, by the form that a label names after it: `trains`: its verb and object;
 * `sends`: what the numbers are that it sends.
 * @typedef {{trains: (form: string) => string, sends: (form: string) => string}} Words
 * @type {{[kind: string]: Words}}
 */
const KINDS = {
  full: {
    trains: (form) => `trains the whole model on your samples${times(form)}`,
    sends: () => "the whole model as it is after training",
  },
  peft: {
    trains: (form) => `trains ${partOf(form)[0]}, and leaves the rest as it is${times(form)}`,
    sends: (form) => partOf(form)[1],
  },
  "entropy-subset": {
    trains: (form) => `trains the upper part of the model on ${shareOf(form)} your samples, those it is least sure of${times(form)}`,
    sends: () => "the upper part of the model after training",
  },
  "few-shot": {
    trains: () => "trains the last layer of the model on a few samples of each label",
    sends: () => "the last layer of the model",
  },
  "zeroth-order": {
    trains: () => "tries small random changes of the model, and looks whether it gets better",
    sends: () => "how much better or worse each random change made it",
  },
  "class-means": {
    trains: () => "averages what the model sees in the samples of each label",
    sends: () => "the averages, and how many samples each label has",
  },
};

/** The parts that `peft` trains: what is trained, and what is sent. @type {{[set: string]: [string, string]}} */
const PARTS = {
  bias: ["a small part of the model", "the biases of the model"],
  head: ["the last layer of the model", "the last layer of the model"],
};
const partOf = (/** @type {string} */ form) => PARTS[form.split(" ")[0]] ?? ["a small part of the model", "the small part that was trained"];

/** Shares of samples. @type {{[percent: string]: string}} */
const SHARES = { 100: "all", 75: "three quarters of", 50: "half of", 25: "a quarter of", 10: "a tenth of" };

/** @param {string} form such as "25% epochs=2" */
function shareOf(form) {
  const percent = /^([\d.]+)%/.exec(form)?.[1] ?? "";
  return SHARES[percent] ?? (percent ? `about one in ${Math.max(2, Math.round(100 / Number(percent)))} of` : "some of");
}

/** @param {string} form such as "epochs=2" */
function times(form) {
  const epochs = Number(/epochs=(\d+)/.exec(form)?.[1]);
  return epochs ? `, ${epochs === 1 ? "once" : epochs === 2 ? "twice" : `${epochs} times`} over` : "";
}

/** The words of a label's kind, for its form; null for a kind that this page does not know. @param {string} label */
function wordsOf(label) {
  const [kind, ...form] = label.split(" ");
  return KINDS[kind]?.trains(form.join(" ")) ?? null;
}

/** What this device does in a round. @param {string} label of a kind, with its form: "entropy-subset 25%" */
export const does = (label) => `This device ${wordsOf(label) ?? `does what is called ${label}`}.`;

/** What a kind does, without who does it. @param {string} label of a kind, with its form */
export const called = (label) => wordsOf(label) ?? label;

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

/** A line of the device's log; of a round that it sits out, with words in place of the labels of kinds. @param {string} text */
export function plainly(text) {
  if (!/^round \d+: sitting out: /.test(text)) return text;
  const label = new RegExp(`(?<![\\w-])(${Object.keys(KINDS).join("|")})(?![\\w-])( [\\d.]+%)?( epochs=\\d+)?`, "g");
  return text.replace(label, (name) => `“${called(name)}”`).replace(": sitting out: ", ": nothing is sent: ");
}

/** Why nothing is done in a round. @param {{rows: {why: string}[], reasons: string[]}} plan */
export function idle({ rows, reasons }) {
  if (reasons.some((reason) => reason.startsWith("rests:"))) return "Other devices bring what this one would send: it rests in this round.";
  const whys = [...new Set(rows.map(({ why }) => why))].slice(0, 2);
  return whys.length ? `Nothing fits this time: ${whys.join("; ")}.` : "";
}

/**
 * Describes what was sent. @param {{kind: string, form: string, bytesUp: number, values: number,
 *   leastDevices: number}} made
 */
export function sends({ kind, form, bytesUp, values, leastDevices }) {
  const meaning = KINDS[kind]?.sends(form);
  const what = `${bytes(bytesUp)}, ${values === 1 ? plural(values, "number") : `${count(values)} numbers`}${meaning ? `: ${meaning}` : ""}`;
  return leastDevices ? `${what}; masked, so that only sums of ${leastDevices} devices or more can be read` : what;
}

/** What became of a contribution. @param {{status: string, reason: string}} receipt */
export function became({ status, reason }) {
  const meanings = {
    accepted: "received, and counted",
    duplicate: "received before, counted once",
    late: "came too late",
    refused: `refused: ${reason}`,
  };
  return meanings[status] ?? status;
}
