/**
 * Content by its hash, on a disk: `blobs/{sha}-{size}`, and what is on its way in `partial/{sha}-{size}/{block}`.
 *
 * One object has a disk's blobs at one time. What is there is known from the beginning, so that `has` need not
 * ask the disk.
 */
import { equal, hex, sha256 } from "./bytes.js";
import { BlobError } from "./errors.js";
import { BLOCK, Partial, blockCount, blockLength, drop, onDisk, short } from "./partial_blob.js";

export { BLOCK, blockCount, blockLength } from "./partial_blob.js";

/** Bytes. A larger blob is refused unless the store was told otherwise. */
export const MAX_BYTES = 1024 ** 3;
const WHOLE = "blobs/";
const PARTIAL = "partial/";

/** @typedef {{sha: Uint8Array, size: number}} Blob */

const nameOf = (blob) => `${hex(blob.sha)}-${blob.size}`;

/** The blob that these bytes are. @param {Uint8Array} bytes @returns {Promise<Blob>} */
export async function named(bytes) {
  return Object.freeze({ sha: await sha256(bytes), size: bytes.length });
}

export class Blobs {
  #disk;
  #here;
  #live = new Map();
  /** The last one that a block was read of: others will be. */
  #read = { name: "", bytes: new Uint8Array() };

  /** What is on the disk. `maxBytes` bounds a single blob. Throws BlobError, as every method does. */
  static async open(disk, maxBytes = MAX_BYTES) {
    const keys = await onDisk(() => disk.keys(WHOLE));
    return new Blobs(disk, maxBytes, new Set(keys.map((key) => key.slice(WHOLE.length))));
  }

  /** @private */
  constructor(disk, maxBytes, here) {
    this.maxBytes = maxBytes;
    this.#disk = disk;
    this.#here = here;
  }

  /** Whether it is here as a whole. @param {Blob} blob */
  has(blob) {
    return this.#here.has(nameOf(blob));
  }

  /** Keep these bytes. @param {Uint8Array} bytes @returns {Promise<Blob>} */
  async put(bytes) {
    const blob = await named(bytes);
    this.#checkSize(blob);
    if (!this.has(blob)) await this.#admit(blob, bytes);
    return blob;
  }

  /**
   * The bytes, verified. What is damaged is removed, so that it can be fetched again. Throws BlobError when it is
   * not here or was damaged. @param {Blob} blob @returns {Promise<Uint8Array>}
   */
  async get(blob) {
    const bytes = await this.#whole(blob);
    if (bytes.length !== blob.size || !equal(await sha256(bytes), blob.sha)) {
      await this.remove(blob);
      throw new BlobError(`blob ${short(blob)} was damaged here, and is removed: fetch it anew`);
    }
    return bytes;
  }

  /**
   * One block as it lies on the disk; whoever puts them together checks the hash. Throws BlockError when there is
   * no such block, BlobError when the blob is not here as a whole.
   */
  async readBlock(blob, index) {
    const length = blockLength(blob, index);
    if (this.#read.name !== nameOf(blob)) this.#read = { name: nameOf(blob), bytes: await this.#whole(blob) };
    return this.#read.bytes.slice(index * BLOCK, index * BLOCK + length);
  }

  /** What has arrived of a blob so far; the same object for the same blob. @param {Blob} blob */
  async partial(blob) {
    this.#checkSize(blob);
    const name = nameOf(blob);
    if (!this.#live.has(name)) this.#live.set(name, this.#begun(blob));
    try {
      return await this.#live.get(name);
    } catch (error) {
      this.#live.delete(name);
      throw error;
    }
  }

  /** One that is not needed, if it is here. @param {Blob} blob */
  async remove(blob) {
    this.#forget(nameOf(blob));
    await onDisk(() => this.#disk.delete(WHOLE + nameOf(blob)));
  }

  /** Remove all but these, whole or on their way. @param {Iterable<Blob>} keep */
  async prune(keep) {
    const kept = new Set([...keep].map(nameOf));
    await onDisk(async () => {
      for (const name of [...this.#here].filter((one) => !kept.has(one))) {
        this.#forget(name);
        await this.#disk.delete(WHOLE + name);
      }
      for (const key of await this.#disk.keys(PARTIAL)) {
        const name = key.slice(PARTIAL.length).split("/")[0];
        if (kept.has(name)) continue;
        this.#live.delete(name);
        await this.#disk.delete(key);
      }
    });
  }

  #forget(name) {
    this.#here.delete(name);
    this.#live.delete(name);
    if (this.#read.name === name) this.#read = { name: "", bytes: new Uint8Array() };
  }

  async #whole(blob) {
    const bytes = this.has(blob) ? await onDisk(() => this.#disk.get(WHOLE + nameOf(blob))) : null;
    if (bytes) return bytes;
    this.#forget(nameOf(blob)); // a browser may have cleared its storage
    throw new BlobError(`blob ${short(blob)} of ${blob.size} bytes is not here: fetch it first`);
  }

  /** Go on with what lies there. */
  async #begun(blob) {
    const name = nameOf(blob);
    const folder = `${PARTIAL}${name}/`;
    if (this.has(blob)) await onDisk(() => drop(this.#disk, folder)); // it was being finished
    const present = await onDisk(() => this.#disk.keys(folder));
    const missing = new Set(this.has(blob) ? [] : Array.from({ length: blockCount(blob) }, (_, index) => index));
    for (const key of present) missing.delete(Number(key.slice(folder.length)));
    const admit = async (bytes) => {
      if (bytes) await this.#admit(blob, bytes);
      else if (!this.has(blob)) throw new BlobError(`blob ${short(blob)} is gone: fetch it anew`);
      this.#live.delete(name);
    };
    return new Partial(blob, { disk: this.#disk, folder, missing, admit });
  }

  async #admit(blob, bytes) {
    const name = nameOf(blob);
    await onDisk(() => this.#disk.put(WHOLE + name, bytes));
    this.#here.add(name);
    await onDisk(() => drop(this.#disk, `${PARTIAL}${name}/`));
  }

  #checkSize(blob) {
    if (blob.size > this.maxBytes) {
      throw new BlobError(`blob ${short(blob)} of ${blob.size} bytes: at most ${this.maxBytes} are kept here`);
    }
  }
}
