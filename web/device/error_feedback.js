/**
 * Persists what codecs left out of updates until a later update sends it (device/delivery/error_feedback.py).
 *
 * Only updates that count take what was left out along: if one is refused, late or never sent, that goes with the
 * next. So there is a file for each kind, with what is left after all updates that count, and after each update
 * without a receipt as if it and those before it counted.
 */

import { hex, sha256, utf8 } from "./bytes.js";
import { TensorError } from "./errors.js";
import { float32 } from "./flat.js";
import { read, write } from "./safetensors.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** What is left, by round: COUNTED, and rounds without a receipt. @typedef {Map<number, Tensors>} Residuals */

const FOLDER = "left/";
/** In place of a round's number: what is left after all updates that count. */
const COUNTED = 0;

/**
 * Stores what was left out, of one run at a time: the first save of a run removes another's. Raises DiskError if the
 * disk fails.
 */
export class ErrorFeedback {
  #disk;
  #log;

  /** @param {any} disk see disk.js @param {(level: string, line: string) => void} log */
  constructor(disk, log) {
    this.#disk = disk;
    this.#log = log;
  }

  /**
   * What to add to the next update. `waiting` are the rounds whose updates are on disk without a receipt; a round
   * that is not among them was never sent. @param {string} run @param {string} kind
   * @param {Set<number>} waiting
   * @returns {Promise<Tensors>}
   */
  async get(run, kind, waiting) {
    const rests = await this.#rests(run, kind, waiting);
    return rests.get(Math.max(...rests.keys())) ?? new Map();
  }

  /**
   * Save what is left after the update of a round. It must be durable before the update is.
   * @param {{run: string, kind: string, round: number, left: Tensors}} of
   * @param {Set<number>} waiting as in `get`
   */
  async put({ run, kind, round, left }, waiting) {
    const rests = await this.#rests(run, kind, waiting);
    const folder = await folderOf(run);
    for (const key of await this.#disk.keys(FOLDER)) {
      if (!key.startsWith(folder)) await this.#disk.delete(key);
    }
    await this.#write(await keyOf(run, kind), new Map([...rests, [round, left]]));
  }

  /**
   * The update of a round has its receipt. A repeated receipt changes nothing. @param {any} message
   * @param {boolean} counts
   */
  async settle({ run, kind, round }, counts) {
    const key = await keyOf(run, kind);
    const rests = await this.#read(key);
    if (round === COUNTED || !rests.has(round)) return;
    (counts ? count : drop)(rests, round);
    await this.#write(key, rests);
  }

  /** What is left, without updates that were never sent. */
  async #rests(/** @type {string} */ run, /** @type {string} */ kind, /** @type {Set<number>} */ waiting) {
    const rests = await this.#read(await keyOf(run, kind));
    for (const number of [...rests.keys()]) {
      if (number !== COUNTED && !waiting.has(number)) drop(rests, number);
    }
    return rests;
  }

  /** The file's content; empty if there is none, or it is damaged. @returns {Promise<Residuals>} */
  async #read(/** @type {string} */ key) {
    const rests = new Map();
    try {
      const bytes = await this.#disk.get(key);
      for (const [place, tensor] of bytes ? read(bytes) : []) {
        const slash = place.indexOf("/");
        const number = Number(place.slice(0, slash));
        rests.set(number, (rests.get(number) ?? new Map()).set(place.slice(slash + 1), tensor));
      }
      return rests;
    } catch (error) {
      if (!(error instanceof TensorError)) throw error;
      this.#log("warning", `what was left out of updates is not readable, and is lost: ${error.message}`);
      return new Map();
    }
  }

  async #write(/** @type {string} */ key, /** @type {Residuals} */ rests) {
    const flat = new Map();
    for (const [number, rest] of rests) for (const [name, tensor] of rest) flat.set(`${number}/${name}`, tensor);
    await this.#disk.put(key, write(flat));
  }
}

/** Move a round to what counts: what it left out stays left, even if rounds before it do not count. */
function count(/** @type {Residuals} */ rests, /** @type {number} */ number) {
  const own = rests.get(number) ?? new Map();
  const before = beforeOf(rests, number);
  rests.delete(number);
  if (before === null) {
    rests.set(COUNTED, own);
    return;
  }
  if (before !== COUNTED && !rests.has(COUNTED)) rests.set(COUNTED, new Map());
  const old = rests.get(before) ?? new Map();
  for (const [earlier, rest] of rests) if (earlier < before) rests.set(earlier, moved(rest, old, own));
  rests.set(before, own);
}

/** Remove a round as if it had never been made. */
function drop(/** @type {Residuals} */ rests, /** @type {number} */ number) {
  const own = rests.get(number) ?? new Map();
  const before = beforeOf(rests, number);
  rests.delete(number);
  const start = (before === null ? null : rests.get(before)) ?? new Map();
  for (const [later, rest] of rests) if (later > number) rests.set(later, moved(rest, own, start));
}

/** @param {Residuals} rests @param {number} number @returns {number | null} */
function beforeOf(rests, number) {
  const earlier = [...rests.keys()].filter((round) => round < number);
  return earlier.length ? Math.max(...earlier) : null;
}

/**
 * `rest` - `old` + `now` in float32; a tensor that only one of them has is zero in the others.
 * @returns {Tensors}
 */
function moved(/** @type {Tensors} */ rest, /** @type {Tensors} */ old, /** @type {Tensors} */ now) {
  const after = new Map(rest);
  for (const name of new Set([...old.keys(), ...now.keys()])) {
    for (const [sign, other] of /** @type {[number, Tensors][]} */ ([[-1, old], [1, now]])) {
      const tensor = other.get(name);
      if (!tensor) continue;
      const before = after.get(name)?.data;
      const sum = Float32Array.from(tensor.data, (value, i) => (before ? before[i] : 0) + sign * value);
      after.set(name, float32(tensor.shape, sum));
    }
  }
  return after;
}

/** Names of runs come over the wire: they are not used as keys. @param {string} run */
async function folderOf(run) {
  return `${FOLDER}${hex(await sha256(utf8(run))).slice(0, 16)}/`;
}

/** @param {string} run @param {string} kind */
async function keyOf(run, kind) {
  return `${await folderOf(run)}${kind}`;
}
