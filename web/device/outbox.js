/** Contributions without a receipt, on disk so that they survive the process (device/delivery/sending.py). */
import { MessageError } from "./errors.js";
import { Contribution, decode, encode } from "./messages.js";

const FOLDER = "outbox/";
const SETTLED = `${FOLDER}settled`;
const keyOf = (seq) => `${FOLDER}${String(seq).padStart(8, "0")}`;

/**
 * One file for each contribution. A body too large for a message lies in the blob store, by its hash. The last
 * contribution with a receipt stays as `settled`, so that a restarted process does not repeat its round. Every method
 * that changes something throws DiskError.
 */
export class Outbox {
  #disk;
  /** By seq. */
  #waiting = new Map();
  #settled = null;
  #lastSeq = 0;

  /**
   * Opens the outbox; contributions of an earlier process wait again. @param {import("./disk.js").Disk} disk
   * @param {(level: string, line: string) => void} log
   */
  static async open(disk, log = () => {}) {
    const outbox = new Outbox(disk);
    for (const key of (await disk.keys(FOLDER)).sort()) {
      const message = await readFrom(disk, key, log);
      if (message && key === SETTLED) outbox.#settled = message;
      else if (message) outbox.#keep(message);
    }
    return outbox;
  }

  /** @private */
  constructor(disk) {
    this.#disk = disk;
  }

  get size() {
    return this.#waiting.size;
  }

  /** Contributions that wait, in the order of their numbers. @returns {IterableIterator<any>} */
  [Symbol.iterator]() {
    return this.#waiting.values();
  }

  /** A number never used by this process: a second receipt of an earlier one may still come. */
  get nextSeq() {
    return this.#lastSeq + 1;
  }

  /** The last contribution with a receipt; null if there is none. @returns {any} */
  get settled() {
    return this.#settled;
  }

  /** The contribution of this number, if it waits. @param {number} seq @returns {any} */
  message(seq) {
    return this.#waiting.get(seq);
  }

  /** Keep a contribution until it is receipted; durable when this resolves. */
  async add(message) {
    await this.#disk.put(keyOf(message.seq), encode(Contribution, message));
    this.#keep(message);
  }

  /**
   * The contribution that this receipt is for; null if there is none. The receipt of a compact contribution (see
   * compact_round.js) has no number, and names only the round.
   */
  named(receipt) {
    const message = this.#waiting.get(receipt.seq || this.#seqOf(receipt.round));
    const fits = message && message.boot === receipt.boot && message.round === receipt.round;
    return fits ? message : null;
  }

  /** Remove this contribution from those that wait: its round is answered. */
  async end(message) {
    const last = this.#settled;
    if (last?.run !== message.run || last.round <= message.round) {
      await this.#disk.put(SETTLED, encode(Contribution, message));
      this.#settled = message;
    }
    await this.drop(message.seq);
  }

  /** Remove a contribution that nobody waits for any more. */
  async drop(seq) {
    await this.#disk.delete(keyOf(seq));
    this.#waiting.delete(seq);
  }

  #keep(message) {
    this.#waiting.set(message.seq, message);
    this.#lastSeq = Math.max(this.#lastSeq, message.seq);
  }

  /** Number of the latest contribution to a round: an older one may be of another task. */
  #seqOf(number) {
    const seqs = [...this.#waiting.values()].filter((message) => message.round === number).map((entry) => entry.seq);
    return Math.max(0, ...seqs);
  }
}

/** The message in a file; if it is not one, the file is removed and null returned. */
async function readFrom(disk, key, log) {
  const payload = await disk.get(key);
  try {
    return payload && decode(Contribution, payload);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    log("warning", `dropped ${key}: ${error.message}`);
    await disk.delete(key);
    return null;
  }
}
