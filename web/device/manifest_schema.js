/** The allowed content of manifest.json (structs of models/bundles/manifest.py and models/bundles/inputs.py). */

import { dictOf, listOf, nullable, number, oneOf, record, refuse, text, truth, whole } from "./records.js";

/** @typedef {import("./records.js").Reader} Reader */

export const FORMAT = 2;
export const LEVELS = ["low", "mid", "up", "head"];
export const TUNABLE_SETS = [
  "all",
  "mid",
  "up",
  "head",
  "bias",
  "adapter",
  "prompt",
  "prefix",
  "lora",
  "sparse",
];
/** Objectives of training graphs; `train` is cross-entropy alone. */
export const TRAINING = [
  "train",
  "moon",
  "distil",
  "kl",
  "attention",
  "attention-norm",
  "prototype",
  "above-low",
  "above-mid",
  "above-up",
];

const count = whole(0, 2 ** 50);
const size = whole(1, 2 ** 31);
const shape = listOf(size);
const names = listOf(text);
/** @type {Reader} */
const setting = (value, where) =>
  typeof value === "boolean" || typeof value === "string" ? value : number(value, where);

const PARAMETER = record({
  name: text,
  shape,
  dtype: oneOf("float32", "int64"),
  level: oneOf(...LEVELS),
  sets: listOf(oneOf(...TUNABLE_SETS)),
});
const FILE = record({ file: text, sha256: text, bytes: count });
const TEXT = record({
  form: text,
  tokenizer: FILE,
  before: listOf(whole()),
  after: listOf(whole()),
  padding: whole(),
  template: [text, "{text}"],
  words: [names, []],
});
/** Hertz. @type {Reader} */
const rate = (value, where) => {
  const hertz = number(value, where);
  return hertz > 0 && hertz <= 1e6 ? hertz : refuse(where, "more than 0 and at most 1000000", value);
};
const WINDOW = record({ step: size, columns: [names, []], rate: [rate, undefined] });
const INPUT = record({
  shape: listOf(size, 1),
  scale: [number, 1],
  mean: [listOf(number), [0]],
  std: [listOf(number), [1]],
  dtype: [oneOf("float32", "int64"), "float32"],
  vocabulary: [nullable(size), null],
  text: [TEXT, undefined],
  window: [WINDOW, undefined],
});
const EXTRA = record({ name: text, shape, per_sample: truth });
const DERIVED = record({
  name: text,
  parameter: text,
  what: oneOf(
    "float32",
    "float16",
    "int8",
    "int8.scale",
    "int8.zero_point",
    "uint8",
    "uint8.scale",
    "uint8.zero_point",
  ),
  transposed: [truth, false],
  columns: [truth, false],
});
const GRAPH = record({
  file: text,
  sha256: text,
  bytes: count,
  trainable: names,
  flops: count,
  fixed_bytes: count,
  bytes_per_sample: count,
  frozen: [names, []],
  statistics: [names, []],
  extras: [listOf(EXTRA), []],
  derived: [listOf(DERIVED), []],
});
export const MANIFEST = record({
  name: text,
  input: INPUT,
  labels: listOf(text, 1),
  parameters: listOf(PARAMETER, 1),
  features: dictOf(shape, oneOf(...LEVELS)),
  head: record({ weight: text, bias: nullable(text), features: size }),
  sets: dictOf(dictOf(setting), oneOf(...TUNABLE_SETS)),
  graphs: dictOf(GRAPH),
  weights: FILE,
  producer: text,
  source: [nullable(record({ network: text, settings: dictOf(setting) })), null],
  stored_as: [oneOf("float32", "float16"), "float32"],
  pretrained: [truth, undefined],
  format: [whole(), FORMAT],
  seal: [text, ""],
});

/** Raises RangeError for an input whose scale, mean, std, vocabulary or text do not fit. @param {any} input */
export function checkInput(input) {
  for (const name of ["mean", "std"]) {
    if (![1, input.shape[0]].includes(input[name].length)) {
      throw new RangeError(`input has ${input[name].length} values of ${name}, not 1 or one per channel`);
    }
  }
  const divisors = [input.scale, ...input.std].map(Math.fround);
  const values = [...divisors, ...input.mean.map(Math.fround)];
  if (!values.every(Number.isFinite))
    throw new RangeError("scale, mean or std of the input is not finite in float32");
  if (divisors.includes(0))
    throw new RangeError("scale or std of the input is 0 in float32, which leaves nothing of it");
  if ((input.dtype === "int64") !== (input.vocabulary !== null)) {
    throw new RangeError(`input of ${input.dtype} has vocabulary ${input.vocabulary}: int64 alone has one`);
  }
  if (input.text) checkText(input);
}

/** Raises RangeError for fixed tokens outside the vocabulary, or that leave no room for a text. @param {any} input */
function checkText({ text: template, vocabulary, shape: [length, ...more] }) {
  const fixed = [...template.before, ...template.after, template.padding];
  if (vocabulary === null || fixed.some((id) => id < 0 || id >= vocabulary)) {
    throw new RangeError(`ids ${fixed.join(", ")} around a text are not all of the vocabulary ${vocabulary}`);
  }
  if (more.length || fixed.length > length)
    throw new RangeError(`input has no room for a text beside ${fixed.length - 1} tokens`);
}
