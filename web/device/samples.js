// Labelled samples on a Disk, raw, for one shape of input: what a device trains on, and what it keeps out of
// training to see how well the model does. They never leave the disk in any message.

import { hex, sha256 } from "./bytes.js";
import { DataError } from "./errors.js";
import { prepare, sizeOf } from "./preparing.js";

const HELD_SHARE = 0.2;
const FOLDER = "samples/";
const MOST_TOGETHER = 500; // samples in one file of the disk

/**
 * @typedef {{id: string, label: string, held: boolean}} Sample
 * @typedef {{label: string, training: number, held: number}} Count
 * @typedef {{x: Float32Array, y: Int32Array, shape: number[]}} LocalData x (n, *shape), prepared
 * @typedef {{key: string, label: string, raw: Uint8Array | Float32Array, held: boolean[]}} Group
 *   samples of one label that came together, raw (n, *shape)
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
    this._folder = `${FOLDER}${spec.shape.join("x")}/`;
    /** @type {Map<string, Group>} */
    this._groups = new Map();
    /** One reading after the other: the last one stands. */
    this._opening = Promise.resolve();
  }

  /** Reads what is there; again, what somebody else has changed. */
  async open() {
    const before = this._opening.catch(() => {});
    this._opening = before.then(() => this._read());
    await this._opening;
    return this;
  }

  async _read() {
    const groups = new Map();
    for (const key of (await this._disk.keys(this._folder)).sort()) {
      const bytes = await this._disk.get(key);
      if (bytes) await this._keep(groups, key, read(bytes));
    }
    this._groups = groups;
  }

  /**
   * Keep samples of one label; `at` orders them, in ms.
   * @param {string | number} label a label of the task, or a class number where no label is one
   * @param {Uint8Array | Float32Array} raw (n, *shape)
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
      await this._keep(this._groups, key, part);
    }
  }

  /** The class number of a label. @param {string | number} label @throws DataError */
  number(label) {
    const exact = this.labels.indexOf(String(label));
    if (exact >= 0) return exact;
    const alike = this.labels.filter((one) => folded(one) === folded(String(label)));
    if (alike.length === 1) return this.labels.indexOf(alike[0]);
    const numbered = !this.labels.some((one) => /^\s*\d+\s*$/.test(one)) && /^\d+$/.test(String(label));
    if (numbered && Number(label) < this.labels.length) return Number(label);
    throw new DataError(`label '${String(label).slice(0, 40)}' is not one of this task: ${this.labels.slice(0, 12).join(", ")}`);
  }

  /** Delete one; those behind it in its group have other ids from then on. @param {string} id */
  async remove(id) {
    const [key, place] = split(id);
    const group = this._groups.get(key);
    if (!group) return;
    const raw = group.raw.filter((_, i) => Math.floor(i / this._size) !== place);
    const held = group.held.filter((_, i) => i !== place);
    if (raw.length) await this._disk.put(key, written(raw));
    else await this._disk.delete(key);
    if (raw.length) this._groups.set(key, { ...group, raw, held });
    else this._groups.delete(key);
  }

  /** Delete all of a label, or all of all. @param {string | null} label */
  async clear(label = null) {
    for (const group of [...this._groups.values()]) {
      if (label !== null && group.label !== label) continue;
      await this._disk.delete(group.key);
      this._groups.delete(group.key);
    }
  }

  /** The newest of a label first. @param {string} label @returns {Sample[]} */
  list(label) {
    const groups = [...this._groups.values()].filter((group) => group.label === label);
    const all = groups.flatMap((group) => group.held.map((held, i) => ({ id: `${group.key}#${i}`, label, held })));
    return all.sort((a, b) => (a.id < b.id ? 1 : -1));
  }

  /** What is stored of one, (*shape). @param {string} id */
  raw(id) {
    const [key, place] = split(id);
    return this._groups.get(key)?.raw.slice(place * this._size, (place + 1) * this._size) ?? null;
  }

  /** @returns {Count[]} for each label of the task */
  counts() {
    return this.labels.map((label) => {
      const held = [...this._groups.values()].filter((group) => group.label === label).flatMap((group) => group.held);
      return { label, training: held.filter((one) => !one).length, held: held.filter(Boolean).length };
    });
  }

  /** What is trained on. @returns {LocalData} */
  training() {
    return this._data(false);
  }

  /** What is kept out of it. @returns {LocalData} */
  held() {
    return this._data(true);
  }

  _data(wanted) {
    const raw = [];
    const y = [];
    const groups = [...this._groups.values()].sort((a, b) => (a.key < b.key ? -1 : 1)); // the same after a restart
    for (const group of groups) {
      group.held.forEach((held, i) => {
        if (held !== wanted) return;
        raw.push(group.raw.subarray(i * this._size, (i + 1) * this._size));
        y.push(this.labels.indexOf(group.label));
      });
    }
    const together = new Float32Array(raw.length * this._size);
    raw.forEach((one, i) => together.set(one, i * this._size));
    return { x: prepare(this._spec, together), y: Int32Array.from(y), shape: this._spec.shape };
  }

  async _keep(groups, key, raw) {
    const label = decodeURIComponent(key.slice(this._folder.length).split("/")[0]);
    if (!this.labels.includes(label) || raw.length % this._size) return;
    const held = [];
    for (let i = 0; i < raw.length; i += this._size) held.push(await isHeld(raw.slice(i, i + this._size)));
    groups.set(key, { key, label, raw, held });
  }
}

/** By its content alone: the same sample always is or never is, whatever comes or goes beside it. */
async function isHeld(raw) {
  const digest = await sha256(new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength));
  return new DataView(digest.buffer, digest.byteOffset).getUint32(0) < HELD_SHARE * 2 ** 32;
}

/** One byte, 0 for uint8 and 1 for float32, three of padding, and the values, little-endian. */
function written(raw) {
  const bytes = new Uint8Array(4 + raw.byteLength);
  bytes[0] = raw instanceof Float32Array ? 1 : 0;
  bytes.set(new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength), 4);
  return bytes;
}

function read(bytes) {
  return bytes[0] === 1 ? new Float32Array(bytes.slice(4).buffer) : bytes.slice(4);
}

const folded = (label) => label.trim().toLowerCase().normalize("NFC");
const split = (id) => [id.slice(0, id.lastIndexOf("#")), Number(id.slice(id.lastIndexOf("#") + 1))];
