/** Reads and checks manifest.json, the description of a bundle (models/bundles/manifest.py). */

import { hex, sha256, text as textOf, utf8 } from "./bytes.js";
import { BundleError, TensorError } from "./errors.js";
import { sizeOf } from "./flat.js";
import { FORMAT, MANIFEST, checkInput } from "./manifest_schema.js";

/** @typedef {import("./flat.js").TensorSpec} TensorSpec */

/** The fields of manifest.json under their names there, and values derived from them. */
export class Manifest {
  /** @param {any} fields checked by `readManifest` */
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
    /** @type {boolean | undefined} */
    this.pretrained = fields.pretrained;
    this.format = fields.format;
  }

  /** Names of the parameters trained in a tunable set, in the order of `parameters`. @returns {string[]} */
  names(tunable = "all") {
    return this.specs(tunable).map((spec) => spec.name);
  }

  /**
   * The parameters trained in a tunable set. Raises BundleError for an unknown set.
   * @returns {TensorSpec[]}
   */
  specs(tunable = "all") {
    if (!Object.hasOwn(this.sets, tunable)) {
      const names = Object.keys(this.sets).join(", ");
      throw new BundleError(`bundle ${this.name} has no tunable set '${tunable}'; it has ${names}`);
    }
    return this.parameters.filter((/** @type {any} */ parameter) => parameter.sets.includes(tunable)).map(specOf);
  }

  /**
   * Running statistics that change while a set is trained; an update holds them beside `specs`.
   * @returns {TensorSpec[]}
   */
  statistics(/** @type {string} */ tunable) {
    const moved = this.graphs[`train.${tunable}`]?.statistics ?? [];
    return this.parameters.filter((/** @type {any} */ parameter) => moved.includes(parameter.name)).map(specOf);
  }

  /** Every tensor of the weights file, including those that are never trained. @returns {TensorSpec[]} */
  stored() {
    return this.parameters.map(specOf);
  }

  /**
   * All tensors, grouped by level and tunable sets.
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
 * Reads `manifest.json`; a manifest without a seal is accepted. Raises BundleError for another format, wrong fields,
 * or bytes that do not fit the seal.
 * @param {Uint8Array} data @returns {Promise<Manifest>}
 */
export async function readManifest(data) {
  let fields;
  try {
    const json = JSON.parse(textOf(data));
    if (json?.format !== undefined && json.format !== FORMAT) throw otherFormat(json.format);
    if (json?.loss) throw otherLoss(json);
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

/** @param {any} json */
function otherLoss({ name, loss }) {
  return new BundleError(
    `bundle ${name} is trained with loss ${loss.loss}, browsers train with cross-entropy only: join with device-runtime`,
  );
}

/**
 * Raises TensorError for an id outside the vocabulary; without a vocabulary, anything passes.
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
