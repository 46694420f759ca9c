/** Labelled samples from a file, in memory: .npz with x and y, .npy or .csv as in ../device/arrays.js. */
import { readFile } from "node:fs/promises";
import { basename } from "node:path";

import { readArrays } from "../device/arrays.js";
import { DataError } from "../device/errors.js";
import { numberOf } from "../device/labels.js";
import { prepare, sizeOf } from "../device/preparing.js";

/** Samples of a file, of which every n-th one is held out of training, so that they are a given share. */
export class FileSamples {
  #spec;
  #raw;
  #y;
  #every;
  /** Prepared samples; undefined until first used. */
  #training;
  #holdout;

  /**
   * Throws DataError for a file that cannot be read or is not of the task.
   * @param {string} path @param {any} manifest @param {number} [heldOut] a share of the samples
   */
  static async open(path, manifest, heldOut = 0) {
    let bytes;
    try {
      bytes = new Uint8Array(await readFile(path));
    } catch (error) {
      throw new DataError(`${path} cannot be read: ${error.code ?? error.message}`);
    }
    const { raw, labels } = await readArrays(basename(path), bytes, manifest.input.shape);
    if (!labels) throw new DataError(`${path} has no labels`);
    if (!raw.every(Number.isFinite)) throw new DataError(`${path} has a value that is not finite`);
    const y = Int32Array.from(labels, (label) => classOf(label, manifest.labels));
    return new FileSamples(manifest, { raw, y }, heldOut);
  }

  /**
   * @param {any} manifest @param {{raw: ArrayLike<number>, y: Int32Array}} samples @param {number} heldOut
   */
  constructor({ input }, { raw, y }, heldOut) {
    this.#spec = input;
    this.#raw = raw;
    this.#y = y;
    this.#every = heldOut > 0 ? Math.round(1 / heldOut) : Infinity;
  }

  /** The number of training samples. */
  count() {
    return this.#y.length - Math.floor(this.#y.length / this.#every);
  }

  /** The training samples. */
  training() {
    return (this.#training ??= this.#some((i) => (i + 1) % this.#every !== 0));
  }

  /** The held-out samples. */
  held() {
    return (this.#holdout ??= this.#some((i) => (i + 1) % this.#every === 0));
  }

  /** @param {(i: number) => boolean} wanted */
  #some(isWanted) {
    const size = sizeOf(this.#spec.shape);
    const places = [...this.#y.keys()].filter(isWanted);
    const raw = new Float32Array(places.length * size);
    places.forEach((from, to) => {
      for (let i = 0; i < size; i += 1) raw[to * size + i] = this.#raw[from * size + i];
    });
    const y = Int32Array.from(places, (place) => this.#y[place]);
    return { x: prepare(this.#spec, raw), y, shape: this.#spec.shape };
  }
}

/**
 * The class number of a label: a number is one already, a name is looked up.
 * @param {string | number} label @param {string[]} labels of the task
 */
function classOf(label, labels) {
  if (typeof label === "string") return numberOf(label, labels);
  if (Number.isInteger(label) && label >= 0 && label < labels.length) return label;
  throw new DataError(`label ${label} is not of the task, whose labels are 0 to ${labels.length - 1}`);
}
