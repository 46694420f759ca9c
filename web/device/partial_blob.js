/**
 * A blob on its way: blocks in any order, until their hash is right. Each lies on the disk by itself, so that
 * what is missing is known in a later life; after a power cut a block is there or it is not.
 */
import { equal, hex, sha256 } from "./bytes.js";
import { BlobError, BlockError, DiskError } from "./errors.js";

/** Bytes of every block but the last. */
export const BLOCK = 64 * 1024;

/** @param {{size: number}} blob */
export const blockCount = (blob) => Math.ceil(blob.size / BLOCK);

/** Bytes of one block. Throws BlockError when the blob has no such block. */
export function blockLength(blob, index) {
  if (!Number.isInteger(index) || index < 0 || index >= blockCount(blob)) {
    throw new BlockError(`blob ${short(blob)} has ${blockCount(blob)} blocks, no block ${index}`);
  }
  return Math.min(BLOCK, blob.size - index * BLOCK);
}

/** Of its name, for people. */
export const short = (blob) => hex(blob.sha).slice(0, 12);

/** `work`, whose DiskError is thrown as BlobError. */
export async function onDisk(work) {
  try {
    return await work();
  } catch (error) {
    throw error instanceof DiskError ? new BlobError(error.message) : error;
  }
}

/** `add` in any order, any number of times; `finish` when nothing is `missing`. Made by Blobs. */
export class Partial {
  #disk;
  #folder;
  #admit;
  #missing;

  /**
   * @param {{ sha: Uint8Array, size: number }} blob
   * @param {{ disk: import("./disk.js").Disk, folder: string, missing: Set<number>,
   *   admit: (bytes: Uint8Array | null) => Promise<void> }} place
   *   `folder`: where its blocks lie; `admit` takes the whole; null: it is here already
   */
  constructor(blob, { disk, folder, missing, admit }) {
    this.blob = blob;
    this.#disk = disk;
    this.#folder = folder;
    this.#missing = missing;
    this.#admit = admit;
  }

  /** Block numbers that have not arrived, in order. @returns {number[]} */
  missing() {
    return [...this.#missing].sort((one, other) => one - other);
  }

  /**
   * Keep one block. Returns whether it was new; one that is already here is left as it is. Throws BlockError on
   * a wrong length or number, BlobError when the disk is full.
   */
  async add(index, data) {
    const length = blockLength(this.blob, index);
    if (data.length !== length) {
      throw new BlockError(`block ${index} of blob ${short(this.blob)} has ${length} bytes, not ${data.length}`);
    }
    if (!this.#missing.has(index)) return false;
    this.#missing.delete(index); // a second copy may come while this one is written
    try {
      await onDisk(() => this.#disk.put(`${this.#folder}${index}`, data));
    } catch (error) {
      this.#missing.add(index);
      throw error;
    }
    return true;
  }

  /**
   * Verify the whole and let it into the store. Throws BlobError when blocks are missing, and when the hash is
   * wrong: then all of it is discarded, and every block is missing again.
   */
  async finish() {
    const { blob } = this;
    if (this.#missing.size) throw new BlobError(`blob ${short(blob)} still lacks ${this.#missing.size} blocks`);
    await onDisk(async () => {
      const whole = await this.#joined();
      if (whole && !equal(await sha256(whole), blob.sha)) {
        await this.#discard();
        throw new BlobError(`what came as blob ${short(blob)} has another hash: discarded, fetch it anew`);
      }
      await this.#admit(whole);
      await drop(this.#disk, this.#folder);
    });
  }

  /** null where its blocks are not here: then the blob is. */
  async #joined() {
    const present = new Set(await this.#disk.keys(this.#folder));
    const count = blockCount(this.blob);
    if (!present.size && count) return null;
    const whole = new Uint8Array(this.blob.size);
    for (let index = 0; index < count; index += 1) {
      const block = await this.#disk.get(`${this.#folder}${index}`);
      if (block?.length === blockLength(this.blob, index)) whole.set(block, index * BLOCK);
    }
    return whole; // with a block that the disk has lost, the hash is wrong
  }

  async #discard() {
    await drop(this.#disk, this.#folder);
    for (let index = 0; index < blockCount(this.blob); index += 1) this.#missing.add(index);
  }
}

/** Everything in a folder. @param {import("./disk.js").Disk} disk */
export async function drop(disk, folder) {
  for (const key of await disk.keys(folder)) await disk.delete(key);
}
