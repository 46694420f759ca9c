/**
 * Stores blobs, named by their sha256, on a disk (broker/wire/blobs.py): whole ones under `blobs/{sha}-{size}`, blocks
 * of those that are being fetched under `partial/{sha}-{size}/{block}`.
 *
 * Only one object may use a disk's blobs at a time. It lists them when it is opened, so that `has` need not ask the
 * disk.
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

/** The hash and size of these bytes. @param {Uint8Array} bytes @returns {Promise<Blob>} */
export async function blobOf(bytes) {
  return Object.freeze({ sha: await sha256(bytes), size: bytes.length });
}

export class Blobs {
  #disk;
  #here;
  #live = new Map();
  /** The blob of which a block was read last: more of its blocks will be. */
  #read = { name: "", bytes: new Uint8Array() };

  /** The blobs on this disk. `maxBytes` bounds a single blob. Throws BlobError, as every method does. */
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

  /** Whether the whole blob is here. @param {Blob} blob */
  has(blob) {
    return this.#here.has(nameOf(blob));
  }

  /** Store these bytes. @param {Uint8Array} bytes @returns {Promise<Blob>} */
  async put(bytes) {
    const blob = await blobOf(bytes);
    this.#checkSize(blob);
    if (!this.has(blob)) await this.#admit(blob, bytes);
    return blob;
  }

  /**
   * The bytes, verified. A damaged blob is removed, so that it can be fetched again. Throws BlobError when it is
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
   * One block without a check; the receiver checks the hash of the whole blob. Throws BlockError when there is no
   * such block, BlobError when the blob is not here as a whole.
   */
  async readBlock(blob, index) {
    const length = blockLength(blob, index);
    if (this.#read.name !== nameOf(blob)) this.#read = { name: nameOf(blob), bytes: await this.#whole(blob) };
    return this.#read.bytes.slice(index * BLOCK, index * BLOCK + length);
  }

  /** The Partial of a blob that is being fetched: one object per blob. @param {Blob} blob */
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

  /** Remove a blob, if it is here. @param {Blob} blob */
  async remove(blob) {
    this.#forget(nameOf(blob));
    await onDisk(() => this.#disk.delete(WHOLE + nameOf(blob)));
  }

  /** Remove all blobs but these, also those that are being fetched. @param {Iterable<Blob>} keep */
  async prune(keep) {
    const names = new Set([...keep].map(nameOf));
    await onDisk(async () => {
      for (const name of [...this.#here].filter((file) => !names.has(file))) {
        this.#forget(name);
        await this.#disk.delete(WHOLE + name);
      }
      for (const key of await this.#disk.keys(PARTIAL)) {
        const name = key.slice(PARTIAL.length).split("/")[0];
        if (names.has(name)) continue;
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

  /** Continue with the blocks that are on the disk. */
  async #begun(blob) {
    const name = nameOf(blob);
    const folder = `${PARTIAL}${name}/`;
    if (this.has(blob)) await onDisk(() => drop(this.#disk, folder)); // an earlier process was finishing it
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
