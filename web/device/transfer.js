/**
 * Transfers a blob block by block, at the receiver's request; no clock, no link (broker/wire/transfer.py).
 *
 * The receiver asks (`Pull.wanted`), the sender answers each Get with `answerGet` and keeps no state. The wait before
 * asking again adapts: it grows with the time that blocks take, or a slow link would be filled with copies. Silence
 * doubles the wait and halves the window; blocks that arrive widen the window again.
 */
import { blockCount } from "./blobs.js";
import { BlobError, BlockError } from "./errors.js";

/** The most blocks that are asked for and not yet here. */
export const WINDOW = 8;
/** The most blocks that answer one Get. */
export const MAX_WINDOW = 32;
/** Seconds. The wait before asking again doubles up to this. */
export const MAX_WAIT_S = 60;
/** Block number by which a sender says that it does not have the blob. */
export const UNKNOWN = -1;

/**
 * The receiver's side of one transfer. `now` is in seconds, from any clock that only goes forward. `refused` turns true
 * when the sender does not have the blob; `unanswered` counts the silences since the last good block.
 */
export class Pull {
  refused = false;
  unanswered = 0;
  #partial;
  #limit;
  #window;
  #retryAfterS;
  #waitS;
  #slowestS = 0;
  #outstanding = new Set();
  #lastS = 0;
  #sinceS = 0;
  #silent = false;

  /** @param {import("./partial_blob.js").Partial} partial */
  constructor(blob, partial, window = WINDOW, retryAfterS = 2) {
    this.blob = blob;
    this.#partial = partial;
    this.#limit = this.#window = Math.max(1, Math.min(window, MAX_WINDOW));
    this.#retryAfterS = this.#waitS = retryAfterS;
  }

  /** Whether every block is here. `finish` checks the hash. */
  get done() {
    return this.#partial.missing().length === 0;
  }

  /** The block numbers to ask for now; empty while enough are on the way. Call it at every tick. */
  wanted(now, share = MAX_WINDOW) {
    if (this.refused) return [];
    const missing = this.#partial.missing();
    const lacking = new Set(missing);
    for (const index of [...this.#outstanding]) if (!lacking.has(index)) this.#outstanding.delete(index);
    if (!this.#outstanding.size && !this.#silent) this.#sinceS = now;
    if (this.#outstanding.size && now - this.#lastS >= this.#waitS) this.#fellSilent();
    const window = Math.max(1, Math.min(this.#window, share));
    const free = window - this.#outstanding.size;
    if (this.#outstanding.size && 2 * free < window) return []; // a Get for each single block would waste bytes
    const blocks = missing.filter((index) => !this.#outstanding.has(index)).slice(0, Math.max(0, free));
    for (const index of blocks) this.#outstanding.add(index);
    if (blocks.length) this.#lastS = now;
    return blocks;
  }

  /** Expect the first WINDOW blocks, which the sender sends unasked; those that do not come are asked for. */
  expect(now) {
    for (const index of this.#partial.missing().slice(0, this.#limit)) this.#outstanding.add(index);
    this.#lastS = this.#sinceS = now;
  }

  /**
   * Take one block. Returns whether it was good and new; a bad one is dropped and asked for again. Throws
   * BlobError when the disk is full. @param {Uint8Array} data
   */
  async received(index, data, now) {
    if (index === UNKNOWN) {
      this.refused = true;
      return false;
    }
    let isNew;
    try {
      isNew = await this.#partial.add(index, data);
    } catch (error) {
      if (error instanceof BlockError) return false;
      throw error;
    }
    this.#outstanding.delete(index);
    if (isNew) {
      this.#slowestS = Math.max(now - this.#sinceS, this.#slowestS / 2);
      this.#waitS = Math.min(Math.max(this.#retryAfterS, 3 * this.#slowestS), MAX_WAIT_S);
      this.#window = Math.min(this.#limit, this.#window + 1);
      this.unanswered = 0;
      this.#sinceS = now;
      this.#silent = false;
    }
    this.#lastS = now;
    return isNew;
  }

  /** Ask again at once, because the link was down and the blocks asked for will not come. */
  restart() {
    this.#outstanding.clear();
    this.#waitS = this.#retryAfterS;
    this.#window = this.#limit;
    this.#silent = false;
    this.refused = false;
  }

  /** Verify and store the blob. Throws BlobError, see Partial.finish. */
  async finish() {
    await this.#partial.finish();
  }

  #fellSilent() {
    this.unanswered += 1;
    this.#silent = true; // the next block may answer the first request: its time counts from that one
    this.#outstanding.clear();
    this.#waitS = Math.min(2 * this.#waitS, MAX_WAIT_S);
    this.#window = Math.max(1, Math.floor(this.#window / 2));
  }
}

/**
 * The {index, data} of the blocks that answer a Get: each once, at most `limit`. A blob that is not here is answered by
 * UNKNOWN, so that the receiver does not wait in vain.
 * @param {import("./blobs.js").Blobs} blobs
 */
export async function* answerGet(blobs, get, limit = MAX_WINDOW) {
  const count = blockCount(get.blob);
  const blocks = [...new Set(get.blocks)].filter((index) => index >= 0 && index < count);
  for (const index of blocks.slice(0, limit)) {
    let data;
    try {
      data = await blobs.readBlock(get.blob, index);
    } catch (error) {
      if (!(error instanceof BlobError)) throw error;
      yield { index: UNKNOWN, data: new Uint8Array() };
      return;
    }
    yield { index, data };
  }
}
