/**
 * Pulling a blob block by block, in either direction, as broker/wire/transfer.py: no clock, no link.
 *
 * The receiver asks (`Pull.wanted`), the sender answers each Get with `answer` and keeps no state. Patience
 * adapts: a block that takes long to arrive is not asked for again sooner, or a slow link would be filled with
 * copies. Silence doubles the wait and halves the window; blocks that arrive widen it again.
 */
import { blockCount } from "./blobs.js";
import { BlobError, BlockError } from "./errors.js";

/** Blocks asked for and not yet here, at most. */
export const WINDOW = 8;
/** Blocks that one Get is answered with, at most. */
export const MAX_WINDOW = 32;
/** Seconds. The wait before asking again doubles up to this. */
export const MAX_WAIT_S = 60;
/** Block number by which a sender says that it does not have the blob. */
export const UNKNOWN = -1;

/**
 * One blob being fetched. `now` is in seconds, from any clock that only goes forward. `refused` turns true when
 * the sender does not have the blob; `unanswered` counts the silences since the last good block.
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

  /** Whether every block is here. The hash is not looked at before `finish`. */
  get done() {
    return this.#partial.missing().length === 0;
  }

  /** Block numbers to ask for now; empty while enough are on the way. Call it again at every tick. */
  wanted(now, share = MAX_WINDOW) {
    if (this.refused) return [];
    const missing = this.#partial.missing();
    const lacking = new Set(missing);
    for (const index of [...this.#outstanding]) if (!lacking.has(index)) this.#outstanding.delete(index);
    if (!this.#outstanding.size && !this.#silent) this.#sinceS = now;
    if (this.#outstanding.size && now - this.#lastS >= this.#waitS) this.#fellSilent();
    const window = Math.max(1, Math.min(this.#window, share));
    const free = window - this.#outstanding.size;
    if (this.#outstanding.size && 2 * free < window) return []; // a Get for each block would be mostly envelopes
    const asked = missing.filter((index) => !this.#outstanding.has(index)).slice(0, Math.max(0, free));
    for (const index of asked) this.#outstanding.add(index);
    if (asked.length) this.#lastS = now;
    return asked;
  }

  /** The sender has begun unasked, with the first WINDOW blocks: ask for what does not come. */
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

  /** The link was down: whatever was asked for is not coming. Ask again at once. */
  restart() {
    this.#outstanding.clear();
    this.#waitS = this.#retryAfterS;
    this.#window = this.#limit;
    this.#silent = false;
    this.refused = false;
  }

  /** Verify and store what has arrived. Throws BlobError, see Partial.finish. */
  async finish() {
    await this.#partial.finish();
  }

  #fellSilent() {
    this.unanswered += 1;
    this.#silent = true; // what comes next may answer the first request: it counts from that one
    this.#outstanding.clear();
    this.#waitS = Math.min(2 * this.#waitS, MAX_WAIT_S);
    this.#window = Math.max(1, Math.floor(this.#window / 2));
  }
}

/**
 * The {index, data} to send for a Get: what was asked and exists, each once, at most `limit` blocks. A blob that
 * is not here is answered by UNKNOWN, so that the other side need not wait in vain.
 * @param {import("./blobs.js").Blobs} blobs
 */
export async function* answer(blobs, get, limit = MAX_WINDOW) {
  const count = blockCount(get.blob);
  const asked = [...new Set(get.blocks)].filter((index) => index >= 0 && index < count);
  for (const index of asked.slice(0, limit)) {
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
