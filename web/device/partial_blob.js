/**
 * A blob that is being fetched: takes blocks in any order and checks the hash (broker/wire/partial_blob.py). Each block
 * is a file of its own, so that a later process knows which are missing; after a power cut a block is whole or absent.
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

/** The beginning of a blob's name, for people. */
export const short = (blob) => hex(blob.sha).slice(0, 12);

/** Does `work`, and throws its DiskError as BlobError. */
export async function onDisk(work) {
  try {
    return await work();
  } catch (error) {
    throw error instanceof DiskError ? new BlobError(error.message) : error;
  }
}

/** `add` blocks in any order, and `finish` when none is `missing`. Made by Blobs. */
export class Partial {
  #disk;
  #folder;
  #admit;
  #missing;

  /**
   * @param {{ sha: Uint8Array, size: number }} blob
   * @param {{ disk: import("./disk.js").Disk, folder: string, missing: Set<number>,
   *   admit: (bytes: Uint8Array | null) => Promise<void> }} place
   *   `folder`: where its blocks lie; `admit` stores the whole blob; it is given null if the blob is stored already
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
    return [...this.#missing].sort((left, other) => left - other);
  }

  /**
   * Store one block. Returns whether it was new; a block that is already here is not changed. Throws BlockError on a
   * wrong length or number, BlobError when the disk is full.
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
   * Verify the blob and put it into the store. Throws BlobError when blocks are missing, and when the hash is wrong:
   * then all of it is discarded, and every block is missing again.
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

  /** The whole blob; null if its blocks are gone because the blob is in the store already. */
  async #joined() {
    const present = new Set(await this.#disk.keys(this.#folder));
    const count = blockCount(this.blob);
    if (!present.size && count) return null;
    const whole = new Uint8Array(this.blob.size);
    for (let index = 0; index < count; index += 1) {
      const block = await this.#disk.get(`${this.#folder}${index}`);
      if (block?.length === blockLength(this.blob, index)) whole.set(block, index * BLOCK);
    }
    return whole; // if the disk has lost a block, the hash is wrong
  }

  async #discard() {
    await drop(this.#disk, this.#folder);
    for (let index = 0; index < blockCount(this.blob); index += 1) this.#missing.add(index);
  }
}

/** Remove everything in a folder. @param {import("./disk.js").Disk} disk */
export async function drop(disk, folder) {
  for (const key of await disk.keys(folder)) await disk.delete(key);
}
