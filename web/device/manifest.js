/** What a bundle says about itself: manifest.json, as models/manifest.py reads and checks it. */

import { hex, sha256, text as textOf, utf8 } from "./bytes.js";
import { BundleError, TensorError } from "./errors.js";
import { sizeOf } from "./flat.js";
import { dictOf, listOf, nullable, number, oneOf, record, text, truth, whole } from "./records.js";

/** @typedef {import("./flat.js").TensorSpec} TensorSpec */
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
const INPUT = record({
  shape: listOf(size, 1),
  scale: [number, 1],
  mean: [listOf(number), [0]],
  std: [listOf(number), [1]],
  dtype: [oneOf("float32", "int64"), "float32"],
  vocabulary: [nullable(size), null],
  text: [TEXT, undefined],
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
const MANIFEST = record({
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
  format: [whole(), FORMAT],
  seal: [text, ""],
});

/** The fields of manifest.json by their names there, and what follows from them. */
export class Manifest {
  /** @param {any} fields as `readManifest` checked them */
  constructor(fields) {
    /** @type {string} */
    this.name = fields.name;
    this.input = fields.input;
    /** @type {string[]} */
    this.labels = fields.labels;
    this.parameters = fields.parameters;
    /** @type {Record<string, number[]>} */
    this.features = fields.features;
    /** @type {{weight: string, bias: string | null, features: number}} */
    this.head = fields.head;
    this.sets = fields.sets;
    /** @type {Record<string, any>} */
    this.graphs = fields.graphs;
    this.weights = fields.weights;
    this.producer = fields.producer;
    this.source = fields.source;
    this.stored_as = fields.stored_as;
    this.format = fields.format;
  }

  /** Names of the parameters trained in a tunable set, in the order of the table. @returns {string[]} */
  names(tunable = "all") {
    return this.specs(tunable).map((spec) => spec.name);
  }

  /**
   * The parameters trained in a tunable set. Raises BundleError for a set that is not there.
   * @returns {TensorSpec[]}
   */
  specs(tunable = "all") {
    if (!Object.hasOwn(this.sets, tunable)) {
      const known = Object.keys(this.sets).join(", ");
      throw new BundleError(`bundle ${this.name} has no tunable set '${tunable}'; it has ${known}`);
    }
    return this.parameters.filter((/** @type {any} */ one) => one.sets.includes(tunable)).map(specOf);
  }

  /**
   * Running statistics that training a set moves; they belong to an update beside `specs`.
   * @returns {TensorSpec[]}
   */
  statistics(/** @type {string} */ tunable) {
    const moved = this.graphs[`train.${tunable}`]?.statistics ?? [];
    return this.parameters.filter((/** @type {any} */ one) => moved.includes(one.name)).map(specOf);
  }

  /** Every tensor of the weights file, those that are never trained too. @returns {TensorSpec[]} */
  stored() {
    return this.parameters.map(specOf);
  }

  /**
   * All tensors, those together that stand at one level and belong to the same sets.
   * @returns {TensorSpec[][]}
   */
  parts() {
    /** @type {Map<string, TensorSpec[]>} */
    const together = new Map();
    for (const parameter of this.parameters) {
      const key = [parameter.level, ...parameter.sets].join(" ");
      together.set(key, [...(together.get(key) ?? []), specOf(parameter)]);
    }
    return [...together.values()];
  }

  /** Number of trained values. */
  numParameters(tunable = "all") {
    return this.specs(tunable).reduce((sum, spec) => sum + sizeOf(spec.shape), 0);
  }
}

/** @param {any} parameter @returns {TensorSpec} */
const specOf = ({ name, shape, dtype }) => ({ name, shape, dtype });

/**
 * Raises BundleError for what is not a manifest of a format this version reads, or does not fit its seal.
 * @param {Uint8Array} data @returns {Promise<Manifest>}
 */
export async function readManifest(data) {
  let fields;
  try {
    const json = JSON.parse(textOf(data));
    if (json?.format !== undefined && json.format !== FORMAT) throw otherFormat(json.format);
    fields = MANIFEST(json, "manifest");
    checkInput(fields.input);
  } catch (error) {
    if (error instanceof BundleError) throw error;
    throw new BundleError(`manifest.json is not a manifest: ${/** @type {Error} */ (error).message}`);
  }
  const unsealed = textOf(data).replaceAll(`"seal": "${fields.seal}"`, '"seal": ""');
  if (fields.seal && hex(await sha256(utf8(unsealed))) !== fields.seal) {
    throw new BundleError("manifest.json is damaged: it does not fit its seal; fetch the bundle again");
  }
  return new Manifest(fields);
}

/** @param {any} format */
function otherFormat(format) {
  const what = format < FORMAT ? "export the bundle again" : "update the page";
  return new BundleError(`manifest.json has format ${format}, this version reads ${FORMAT}: ${what}`);
}

/** Raises RangeError for preparation that is none. @param {any} input */
function checkInput(input) {
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

/** Raises RangeError for fixed tokens that do not fit. @param {any} input */
function checkText({ text: said, vocabulary, shape: [length, ...more] }) {
  const fixed = [...said.before, ...said.after, said.padding];
  if (vocabulary === null || fixed.some((id) => id < 0 || id >= vocabulary)) {
    throw new RangeError(`ids ${fixed.join(", ")} around a text are not all of the vocabulary ${vocabulary}`);
  }
  if (more.length || fixed.length > length)
    throw new RangeError(`input has no room for a text beside ${fixed.length - 1} tokens`);
}

/**
 * Raises TensorError for an id that the vocabulary does not have.
 * @param {any} input
 * @param {ArrayLike<number>} ids
 */
export function checkIds(input, ids) {
  if (input.vocabulary === null) return;
  for (let i = 0; i < ids.length; i += 1) {
    if (ids[i] >= 0 && ids[i] < input.vocabulary) continue;
    throw new TensorError(`input holds token id ${ids[i]}, expected 0 to ${input.vocabulary - 1}`);
  }
}
