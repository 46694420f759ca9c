/** Downloads blobs: asks for missing blocks at each tick until all are here (device/delivery/downloads.py). */
import { hex } from "./bytes.js";
import { BlobError } from "./errors.js";
import { hexOf } from "./messages.js";
import { Pull } from "./transfer.js";

/** Times that a complete blob may have a wrong hash before it is given up. */
export const WRONG_HASHES = 2;
/** Most bytes of all blobs that are fetched at one time. */
export const MOST_BYTES = 2 * 1024 ** 3;

/** @typedef {{blob: any, pull: Pull, beganS: number}} Fetch */

export class Downloads {
  #blobs;
  #ask;
  #arrived;
  #log;
  /** Downloads by hash. @type {Map<string, Fetch>} */
  #pulls = new Map();
  /** How often a complete blob had a wrong hash, by the right hash. */
  #wrong = new Map();

  /**
   * @param {import("./blobs.js").Blobs} blobs
   * @param {{ ask: (get: any) => void, arrived: (blob: any, seconds: number) => void,
   *   log?: (level: string, line: string) => void }} tell
   *   `ask` sends a Get; `arrived` is called with each blob that is complete and verified, and the seconds that it took
   */
  constructor(blobs, { ask, arrived, log = () => {} }) {
    this.#blobs = blobs;
    this.#ask = ask;
    this.#arrived = arrived;
    this.#log = log;
  }

  /**
   * Fetch these blobs and no others. Resolves to false when the sender does not have one of them, or its content never
   * has the right hash: a later offer may ask again. Throws BlobError for a wrong hash, after which it is fetched
   * again, once; and for more than MOST_BYTES, of which nothing is fetched. `now` in seconds.
   */
  async advance(blobs, now) {
    const fetches = new Map();
    const bytes = [...blobs].reduce((sum, blob) => sum + blob.size, 0);
    if (bytes > MOST_BYTES) {
      this.#pulls = fetches;
      throw new BlobError(`${bytes} bytes are to be fetched at one time: at most ${MOST_BYTES} are`);
    }
    for (const blob of blobs) {
      const name = hexOf(blob);
      fetches.set(name, this.#pulls.get(name) ?? (await this.#begun(blob, now)));
    }
    this.#pulls = fetches;
    for (const [name, fetch] of fetches) {
      if (fetch.pull.refused || this.#wrong.get(name) >= WRONG_HASHES) return this.#givenUp(name, fetch);
      if (fetch.pull.done) await this.#finish(name, fetch, now);
      else this.#askFor(fetch, now);
    }
    return true;
  }

  /** The sender has begun with this blob unasked. */
  async expect(blob, now) {
    const name = hexOf(blob);
    if (this.#pulls.has(name) || this.#blobs.has(blob)) return;
    const fetch = await this.#begun(blob, now);
    this.#pulls.set(name, fetch);
    fetch.pull.expect(now);
  }

  /** Take a block; one that is not waited for is dropped. @param {Uint8Array} sha @param {Uint8Array} data */
  async received(sha, index, data, now) {
    await this.#pulls.get(hex(sha))?.pull.received(index, data, now);
  }

  /** The link was down: blocks that were asked for do not come. */
  restart() {
    for (const { pull } of this.#pulls.values()) pull.restart();
  }

  /** Drop all blobs except those of this offer, those that wait to be sent, and those that are being fetched. */
  async prune(offer, waiting) {
    const bases = [offer.base, ...offer.family.map((member) => member.base)];
    const bundles = [offer.bundle, ...offer.family.map((member) => member.bundle)];
    const parts = bases.flatMap((base) => [...base.checkpoint, ...base.log]);
    const coming = [...this.#pulls.values()].map((fetch) => fetch.blob);
    const keep = [...bundles, ...parts, offer.aside, ...waiting, ...coming].filter(Boolean);
    try {
      await this.#blobs.prune(keep);
    } catch (error) {
      if (!(error instanceof BlobError)) throw error;
      this.#log("warning", error.message);
    }
  }

  async #begun(blob, now) {
    return { blob, pull: new Pull(blob, await this.#blobs.partial(blob)), beganS: now };
  }

  #askFor({ blob, pull }, now) {
    const blocks = pull.wanted(now);
    if (blocks.length) this.#ask({ blob, blocks });
  }

  async #finish(name, { blob, pull, beganS }, now) {
    try {
      await pull.finish();
    } catch (error) {
      if (!this.#blobs.has(blob)) this.#wrong.set(name, (this.#wrong.get(name) ?? 0) + 1);
      throw error;
    }
    this.#wrong.delete(name);
    this.#arrived(blob, now - beganS);
  }

  #givenUp(name, { pull }) {
    this.#pulls.delete(name);
    this.#wrong.delete(name);
    const why = pull.refused ? "the aggregator does not have it" : "what came as it had another hash twice";
    this.#log("warning", `blob ${name.slice(0, 12)}: ${why}`);
    return false;
  }
}
