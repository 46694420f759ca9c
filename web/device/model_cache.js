/** What the device holds of a task: the bundle and the base model, fetched once and named by their hashes. */

import { equal, sha256 } from "./bytes.js";
import { Bundle } from "./bundle.js";
import { StaleBase, TensorError, UnusableBase } from "./errors.js";
import { check } from "./flat.js";
import { CHECK_BYTES, LINE_BYTES, hexOf } from "./messages.js";
import { replay } from "./replaying.js";
import { read, write } from "./safetensors.js";
import { stepsOf, way } from "./base_route.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./manifest.js").Manifest} Manifest */

/** Blobs of one device, and the weights of its last base model with the steps already taken on it. */
export class Holdings {
  /**
   * Where it stands: so many steps on a line. @type {{line: Uint8Array, at: number, weights: Tensors} | null}
   */
  #stand = null;
  /** The one that was opened last. @type {Bundle | null} */
  #bundle = null;
  /** @type {{bundle: Bundle, line: Uint8Array, names: string[]} | null} */
  #shipped = null;

  /** @param {any} blobs see blobs.js */
  constructor(blobs) {
    this.blobs = blobs;
  }

  /** What must be fetched before it can be decided how to work on this offer. @param {any} offer */
  async missingBundle(offer) {
    const isHere = this.#bundle?.sha256 === hexOf(offer.bundle) || (await this.blobs.has(offer.bundle));
    return isHere ? [] : [offer.bundle];
  }

  /**
   * What must be fetched before this base can be worked on, and what comes beside it. Raises UnusableBase,
   * StaleBase for a base that nothing which is here or named leads to. @param {any} base @param {any} aside
   */
  async missing(base, aside) {
    const { needed } = await this.#way(base);
    const blobs = new Map([...(aside ? [aside] : []), ...needed].map((blob) => [hexOf(blob), blob]));
    const lacking = [];
    for (const blob of blobs.values()) if (!(await this.blobs.has(blob))) lacking.push(blob);
    return lacking;
  }

  /**
   * What of a base is as it is in the bundle need not be fetched, and steps from there on can be taken.
   * @param {Bundle} bundle @param {any} base
   */
  async takeParts(bundle, base) {
    const stand = this.#stand;
    if (stand && equal(stand.line, base.line) && stand.at <= base.at) return;
    if (!base.at && !base.steps && !(await this.missing(base, null)).length) return;
    const { line, names } = await this.#own(bundle);
    if (base.at && equal(line, base.line)) this.#stand = { line: base.line, at: 0, weights: bundle.weights() };
    const wanted = names.map((name) => base.checkpoint.some((/** @type {any} */ part) => hexOf(part) === name));
    if (!wanted.includes(true)) return;
    for (const [i, part] of encodedParts(bundle.weights(), bundle.manifest).entries()) {
      if (wanted[i]) await this.blobs.put(part);
    }
  }

  /**
   * What came beside the base. Raises BlobError, TensorError. @param {any} blob or null
   * @returns {Promise<Tensors>}
   */
  async aside(blob) {
    return blob ? read(await this.blobs.get(blob)) : new Map();
  }

  /**
   * The bundle of this hash, opened once. Raises BundleError for what is not a bundle, BlobError when it must
   * be fetched (again). @param {any} blob @returns {Promise<Bundle>}
   */
  async bundle(blob) {
    if (this.#bundle?.sha256 !== hexOf(blob)) this.#bundle = await Bundle.open(await this.blobs.get(blob));
    return this.#bundle;
  }

  /**
   * The base model: what this device stands on or the checkpoint, and the steps since. When the result is not
   * the model that the aggregator has: raises StaleBase where beginning anew may mend it, UnusableBase where
   * that was done. Raises TensorError, UnknownGenerator. @param {any} base @param {Manifest} manifest
   */
  async base(base, manifest) {
    const found = await this.#way(base);
    let weights;
    try {
      weights = await this.#gone(found, base, manifest);
    } catch (error) {
      const isWrong = error instanceof UnusableBase || error instanceof TensorError;
      if (!found.start || !isWrong) throw error;
      this.#stand = null;
      throw new StaleBase(`${error.message}: beginning anew`);
    }
    if (found.start && base.at && !base.steps) {
      // the checkpoint, for a life of this device that stands nowhere
      for (const part of encodedParts(weights, manifest)) await this.blobs.put(part);
    }
    this.#stand = { line: base.line, at: base.at, weights };
    return weights;
  }

  /**
   * Where the bundle's own weights stand, and what their parts are called: found once, for each round asks.
   * @param {Bundle} bundle
   */
  async #own(bundle) {
    if (this.#shipped?.bundle !== bundle) {
      const weights = bundle.weights();
      const names = [];
      for (const part of encodedParts(weights, bundle.manifest)) names.push(hexOf({ sha: await sha256(part) }));
      this.#shipped = { bundle, line: (await shaOf(weights)).subarray(0, LINE_BYTES), names };
    }
    return this.#shipped;
  }

  /** What the way leads to. Raises as `base` does. */
  async #gone(/** @type {any} */ found, /** @type {any} */ base, /** @type {Manifest} */ manifest) {
    let weights = found.start?.weights;
    if (!weights) {
      weights = await this.#joined(base);
      check(weights, manifest.stored());
    }
    weights = await replay(weights, await stepsOf(found, base, this.blobs), manifest);
    const sha = await shaOf(weights);
    if (base.sha.length < CHECK_BYTES || !equal(sha.subarray(0, base.sha.length), base.sha)) {
      throw new UnusableBase(`base model after ${base.at} steps is not the aggregator's`);
    }
    return weights;
  }

  /** How to get there. Raises as `missing` does. @param {any} base */
  async #way(base) {
    const found = await way(base, this.#stand, (/** @type {any} */ blob) => this.blobs.has(blob));
    if (!found) throw new StaleBase(`base model after ${base.at} steps: no replay state and no blob of the offer leads there`);
    return found;
  }

  /**
   * All parts of the checkpoint. Raises BlobError, TensorError. @param {any} base @returns {Promise<Tensors>}
   */
  async #joined(base) {
    const weights = new Map();
    for (const part of base.checkpoint) {
      for (const [name, tensor] of read(await this.blobs.get(part))) weights.set(name, tensor);
    }
    return weights;
  }
}

/** @param {Tensors} weights @param {Manifest} manifest @returns {Uint8Array[]} the parts of a checkpoint */
function encodedParts(weights, manifest) {
  const together = (/** @type {import("./flat.js").TensorSpec[]} */ specs) =>
    new Map(specs.map(({ name }) => [name, tensorOf(weights, name)]));
  return manifest.parts().map((specs) => write(together(specs)));
}

/** @param {Tensors} weights @param {string} name */
function tensorOf(weights, name) {
  const tensor = weights.get(name);
  if (!tensor) throw new TensorError(`${name} missing`);
  return tensor;
}

/** @param {Tensors} weights @returns {Promise<Uint8Array>} 32 bytes */
const shaOf = (weights) => sha256(write(weights));
