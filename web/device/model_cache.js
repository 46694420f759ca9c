/**
 * Caches a task's bundle and base model on the device, fetched once and named by their hashes
 * (device/delivery/cache.py).
 */

import { findRoute, stepsOf } from "./base_route.js";
import { Bundle } from "./bundle.js";
import { equal, sha256 } from "./bytes.js";
import { StaleBase, TensorError, UnusableBase } from "./errors.js";
import { check } from "./flat.js";
import { CHECK_BYTES, LINE_BYTES, hexOf } from "./messages.js";
import { replay } from "./replaying.js";
import { read, write } from "./safetensors.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./manifest.js").Manifest} Manifest */

/** Blobs of one device, and the weights of its last base model with the steps replayed on it. */
export class ModelCache {
  /**
   * The replay state: weights after `at` steps of a line.
   * @type {{line: Uint8Array, at: number, weights: Tensors} | null}
   */
  #state = null;
  /** The bundle that was opened last. @type {Bundle | null} */
  #bundle = null;
  /** @type {{bundle: Bundle, line: Uint8Array, names: string[]} | null} */
  #shipped = null;

  /** @param {any} blobs see blobs.js */
  constructor(blobs) {
    this.blobs = blobs;
  }

  /** The bundle to fetch, if any, before the work on this offer can be planned. @param {any} offer */
  async missingBundle(offer) {
    const isHere = this.#bundle?.sha256 === hexOf(offer.bundle) || (await this.blobs.has(offer.bundle));
    return isHere ? [] : [offer.bundle];
  }

  /**
   * Blobs to fetch before this base can be made, and the blob of the tensors beside it. Raises StaleBase if neither
   * this device's state nor the named blobs lead to the base, UnusableBase if its log is damaged.
   * @param {any} base @param {any} aside
   */
  async missing(base, aside) {
    const { needed } = await this.#route(base);
    const blobs = new Map([...(aside ? [aside] : []), ...needed].map((blob) => [hexOf(blob), blob]));
    const lacking = [];
    for (const blob of blobs.values()) if (!(await this.blobs.has(blob))) lacking.push(blob);
    return lacking;
  }

  /**
   * Store the parts of a base that are as in the bundle, so that they need not be fetched. Steps from the bundle's
   * weights can then be replayed.
   * @param {Bundle} bundle @param {any} base
   */
  async takeParts(bundle, base) {
    const state = this.#state;
    if (state && equal(state.line, base.line) && state.at <= base.at) return;
    if (!base.at && !base.steps && !(await this.missing(base, null)).length) return;
    const { line, names } = await this.#own(bundle);
    if (base.at && equal(line, base.line)) this.#state = { line: base.line, at: 0, weights: bundle.weights() };
    const isPart = names.map((name) => base.checkpoint.some((/** @type {any} */ part) => hexOf(part) === name));
    if (!isPart.includes(true)) return;
    for (const [i, part] of encodedParts(bundle.weights(), bundle.manifest).entries()) {
      if (isPart[i]) await this.blobs.put(part);
    }
  }

  /**
   * The tensors sent beside the base. Raises BlobError, TensorError. @param {any} blob or null
   * @returns {Promise<Tensors>}
   */
  async aside(blob) {
    return blob ? read(await this.blobs.get(blob)) : new Map();
  }

  /**
   * The bundle of this hash, opened once. Raises BundleError for a blob that is not a bundle, BlobError when it must
   * be fetched (again). @param {any} blob @returns {Promise<Bundle>}
   */
  async bundle(blob) {
    if (this.#bundle?.sha256 !== hexOf(blob)) this.#bundle = await Bundle.open(await this.blobs.get(blob));
    return this.#bundle;
  }

  /**
   * The base model: this device's state or the checkpoint, with the steps since replayed. If the result is not the
   * aggregator's model, raises StaleBase where starting from the checkpoint may help, UnusableBase where that was done.
   * Raises TensorError, UnknownGenerator. @param {any} base @param {Manifest} manifest
   */
  async base(base, manifest) {
    const route = await this.#route(base);
    let weights;
    try {
      weights = await this.#replayed(route, base, manifest);
    } catch (error) {
      const isWrong = error instanceof UnusableBase || error instanceof TensorError;
      if (!route.start || !isWrong) throw error;
      this.#state = null;
      throw new StaleBase(`${error.message}: beginning anew`);
    }
    if (route.start && base.at && !base.steps) {
      // the base is now its own checkpoint: store it for the next process, which has no replay state
      for (const part of encodedParts(weights, manifest)) await this.blobs.put(part);
    }
    this.#state = { line: base.line, at: base.at, weights };
    return weights;
  }

  /**
   * The line that begins with the bundle's weights, and the hashes of their parts; computed once, as each round asks.
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

  /** The weights at the end of the route. Raises as `base` does. */
  async #replayed(/** @type {any} */ route, /** @type {any} */ base, /** @type {Manifest} */ manifest) {
    let weights = route.start?.weights;
    if (!weights) {
      weights = await this.#checkpoint(base);
      check(weights, manifest.stored());
    }
    weights = await replay(weights, await stepsOf(route, base, this.blobs), manifest);
    const sha = await shaOf(weights);
    if (base.sha.length < CHECK_BYTES || !equal(sha.subarray(0, base.sha.length), base.sha)) {
      throw new UnusableBase(`base model after ${base.at} steps is not the aggregator's`);
    }
    return weights;
  }

  /** The route to this base. Raises as `missing` does. @param {any} base */
  async #route(base) {
    const route = await findRoute(base, this.#state, (/** @type {any} */ blob) => this.blobs.has(blob));
    if (!route) throw new StaleBase(`base model after ${base.at} steps: no replay state and no blob of the offer leads there`);
    return route;
  }

  /**
   * All parts of the checkpoint. Raises BlobError, TensorError. @param {any} base @returns {Promise<Tensors>}
   */
  async #checkpoint(base) {
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
