/** Contributions that the aggregator has not receipted yet, on the disk, as client/delivery/outbox.py. */
import { MessageError } from "./errors.js";
import { Contribution, decode, encode } from "./messages.js";

const FOLDER = "outbox/";
const SETTLED = `${FOLDER}settled`;
const keyOf = (seq) => `${FOLDER}${String(seq).padStart(8, "0")}`;

/**
 * One key for each contribution. A body too large for a message lies among the blobs, by its hash. The last one
 * that was receipted stays, as `settled`, so that a later life does not do that round's work again. Every method
 * that changes something throws DiskError.
 */
export class Outbox {
  #disk;
  /** By seq. */
  #waiting = new Map();
  #settled = null;
  #lastSeq = 0;

  /**
   * What an earlier life left is waiting again. @param {import("./disk.js").Disk} disk
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

  /** In the order of their numbers. @returns {IterableIterator<any>} */
  [Symbol.iterator]() {
    return this.#waiting.values();
  }

  /** Never one that was used in this life: a second receipt of an earlier one may still come. */
  get nextSeq() {
    return this.#lastSeq + 1;
  }

  /** Whether a contribution to this round waits, or is the last that was receipted. */
  answered(run, number) {
    const known = [...this.#waiting.values(), ...(this.#settled ? [this.#settled] : [])];
    return known.some((message) => message.run === run && message.round === number);
  }

  /** Keep it until it is receipted; on the disk when this resolves. */
  async add(message) {
    await this.#disk.put(keyOf(message.seq), encode(Contribution, message));
    this.#keep(message);
  }

  /** The contribution that this receipt ends; null when there is none such, or it is to come again. */
  answering(receipt) {
    return receipt.retry_after_s ? null : this.named(receipt);
  }

  /**
   * The contribution that this receipt is for; null when there is none such. That of a short one (see compact_round.js)
   * has no number, and names the round alone.
   */
  named(receipt) {
    const message = this.#waiting.get(receipt.seq || this.#seqOf(receipt.round));
    const fits = message && message.boot === receipt.boot && message.round === receipt.round;
    return fits ? message : null;
  }

  /** Forget the contribution that this receipt answers, and give it; else null. */
  async settle(receipt) {
    const message = this.answering(receipt);
    if (message) await this.end(message);
    return message;
  }

  /** This one waits no longer, and its round is answered. */
  async end(message) {
    const last = this.#settled;
    if (last?.run !== message.run || last.round <= message.round) {
      await this.#disk.put(SETTLED, encode(Contribution, message));
      this.#settled = message;
    }
    await this.drop(message.seq);
  }

  /** Forget a contribution that nobody waits for any more. */
  async drop(seq) {
    await this.#disk.delete(keyOf(seq));
    this.#waiting.delete(seq);
  }

  #keep(message) {
    this.#waiting.set(message.seq, message);
    this.#lastSeq = Math.max(this.#lastSeq, message.seq);
  }

  /** Of the latest: an older one may be of another task. */
  #seqOf(number) {
    const seqs = [...this.#waiting.values()].filter((message) => message.round === number).map((one) => one.seq);
    return Math.max(0, ...seqs);
  }
}

/** The message under a key; null, and it is dropped, when it is none. */
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
