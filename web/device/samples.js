// Stores labelled raw samples of one input shape on a Disk: those for training, and those held out to judge the model.
// No message contains them.

import { hex, sha256 } from "./bytes.js";
import { DataError } from "./errors.js";
import { numberOf } from "./labels.js";
import { together } from "./local_data.js";
import { sizeOf } from "./preparing.js";
import { isHeld, read, written } from "./sample_files.js";

const FOLDER = "samples/";
const MOST_TOGETHER = 500; // samples in one file of the disk

/**
 * @typedef {{id: string, label: string, held: boolean}} Sample
 * @typedef {{label: string, training: number, held: number}} Count
 * @typedef {import("./local_data.js").LocalData} LocalData
 * @typedef {import("./local_data.js").Group} Group
 */

export class Samples {
  /**
   * @param {import("./disk.js").Disk} disk
   * @param {import("./preparing.js").InputSpec} spec
   * @param {string[]} labels of the task, in order
   */
  constructor(disk, spec, labels) {
    this.labels = labels;
    this._disk = disk;
    this._spec = spec;
    this._size = sizeOf(spec.shape);
    const rate = spec.window?.rate; // windows of another rate are other samples, also of the same shape
    this._folder = `${FOLDER}${spec.shape.join("x")}${rate ? ` at ${rate}` : ""}/`;
    /** @type {Map<string, Group>} */
    this._groups = new Map();
    /** The training and the held-out data; null after a change. @type {LocalData[] | null} */
    this._ready = null;
    /** Keys that were changed here, and keys that were changed elsewhere and must be read. @type {Set<string>[]} */
    [this._touched, this._stale] = [new Set(), new Set()];
    /** Resolves when the last reading ends: readings wait for each other. */
    this._opening = Promise.resolve();
  }

  /** Reads all samples. */
  async open() {
    await this._next(async () => {
      const keys = (await this._disk.keys(this._folder)).sort();
      this._groups = new Map();
      await this._read(keys);
    });
    return this;
  }

  /** Reads samples that were changed elsewhere, by the keys that `touched` returned there. @param {string[]} keys */
  async refresh(keys) {
    for (const key of keys) this._stale.add(key);
    await this._next(() => this._read([...this._stale]));
  }

  /** The keys that were changed since the last call. @returns {string[]} */
  touched() {
    const keys = [...this._touched];
    this._touched.clear();
    return keys;
  }

  async _next(reading) {
    this._opening = this._opening.catch(() => {}).then(reading);
    await this._opening;
  }

  /** Reads these keys; those that cannot be read now are read the next time. @param {string[]} keys */
  async _read(keys) {
    for (const key of keys) this._stale.add(key);
    const stored = await Promise.all(keys.map((key) => this._disk.get(key)));
    for (const [i, key] of keys.entries()) {
      if (stored[i]) await this._keep(key, read(stored[i]));
      else this._drop(key);
      this._stale.delete(key);
    }
  }

  /**
   * Store samples of one label; `at` is their time in ms, by which they are ordered.
   * @param {string | number} label a label of the task, or a class number if no label is a number
   * @param {Uint8Array | Float32Array | Int32Array} raw (n, *shape)
   * @param {number} at
   */
  async add(label, raw, at) {
    const name = this.labels[this.number(label)];
    if (!raw.length || raw.length % this._size) throw new DataError(`a sample has ${this._size} values, not ${raw.length}`);
    if (raw instanceof Float32Array && !raw.every(Number.isFinite)) throw new DataError("a sample has a value that is not finite");
    for (let begin = 0; begin < raw.length; begin += MOST_TOGETHER * this._size) {
      const part = raw.slice(begin, begin + MOST_TOGETHER * this._size);
      const bytes = written(part);
      const key = `${this._folder}${encodeURIComponent(name)}/${String(at).padStart(15, "0")}-${hex((await sha256(bytes)).subarray(0, 8))}`;
      await this._disk.put(key, bytes);
      this._touched.add(key);
      await this._keep(key, part);
    }
  }

  /** The class number of a label. @param {string | number} label @throws DataError */
  number(label) {
    return numberOf(label, this.labels);
  }

  /** Delete a sample; the later ones of its group then have other ids. @param {string} id */
  async remove(id) {
    const [key, place] = split(id);
    const group = this._groups.get(key);
    if (!group) return;
    const raw = group.raw.filter((_, i) => Math.floor(i / this._size) !== place);
    const flags = group.held.filter((_, i) => i !== place);
    if (raw.length) await this._disk.put(key, written(raw));
    else await this._disk.delete(key);
    this._touched.add(key);
    this._drop(key);
    if (raw.length) this._groups.set(key, { ...group, raw, held: flags, prepared: null });
  }

  /** Delete all samples of a label, or of all labels. @param {string | null} label */
  async clear(label = null) {
    for (const group of [...this._groups.values()]) {
      if (label !== null && group.label !== label) continue;
      await this._disk.delete(group.key);
      this._touched.add(group.key);
      this._drop(group.key);
    }
  }

  /** The samples of a label, the newest first. @param {string} label @returns {Sample[]} */
  list(label) {
    const groups = [...this._groups.values()].filter((group) => group.label === label);
    const all = groups.flatMap((group) => group.held.map((flag, i) => ({ id: `${group.key}#${i}`, label, held: flag })));
    return all.sort((a, b) => (a.id < b.id ? 1 : -1));
  }

  /** The raw values of a sample, (*shape); null if there is none. @param {string} id */
  raw(id) {
    const [key, place] = split(id);
    return this._groups.get(key)?.raw.slice(place * this._size, (place + 1) * this._size) ?? null;
  }

  /** @returns {Count[]} for each label of the task */
  counts() {
    return this.labels.map((label) => {
      const flags = [...this._groups.values()].filter((group) => group.label === label).flatMap((group) => group.held);
      return { label, training: flags.filter((flag) => !flag).length, held: flags.filter(Boolean).length };
    });
  }

  /** The number of training samples. Prepares nothing. */
  count() {
    return [...this._groups.values()].reduce((sum, { held: flags }) => sum + flags.filter((flag) => !flag).length, 0);
  }

  /** The training samples; read-only. @returns {LocalData} */
  training() {
    return this._data()[0];
  }

  /** The held-out samples. @returns {LocalData} */
  held() {
    return this._data()[1];
  }

  _data() {
    const groups = () => [...this._groups.values()].sort((a, b) => (a.key < b.key ? -1 : 1)); // the same after a restart
    this._ready ??= together(groups(), { spec: this._spec, labels: this.labels });
    return this._ready;
  }

  async _keep(key, raw) {
    const label = decodeURIComponent(key.slice(this._folder.length).split("/")[0]);
    if (!this.labels.includes(label) || raw.length % this._size) return;
    const count = raw.length / this._size;
    const flags = await Promise.all(Array.from({ length: count }, (_, i) => isHeld(raw.slice(i * this._size, (i + 1) * this._size))));
    this._drop(key);
    this._groups.set(key, { key, label, raw, held: flags, prepared: null });
  }

  _drop(key) {
    this._groups.delete(key);
    this._ready = null;
  }
}

const split = (id) => [id.slice(0, id.lastIndexOf("#")), Number(id.slice(id.lastIndexOf("#") + 1))];
