/**
 * The interface of a disk: bytes by a key, which is a path of parts with "/" between them. A `put` is atomic, also in a
 * power cut, and durable when it resolves. Every method throws DiskError if the disk is full or fails.
 *
 * @typedef {object} Disk
 * @property {(key: string) => Promise<Uint8Array | null>} get null if there is none; the caller owns the bytes
 * @property {(key: string, bytes: Uint8Array) => Promise<void>} put
 * @property {(key: string) => Promise<void>} delete does nothing if there is none
 * @property {(prefix?: string) => Promise<string[]>} keys those that begin with `prefix`, in any order
 */
import { DiskError } from "./errors.js";

/** A disk in memory, which lasts as long as its object, with room for so many bytes. */
export class MemoryDisk {
  #values = new Map();
  #room;

  constructor(room = Infinity) {
    this.#room = room;
  }

  async get(key) {
    return this.#values.get(key)?.slice() ?? null;
  }

  async put(key, bytes) {
    const others = [...this.#values].filter(([other]) => other !== key).reduce((sum, [, content]) => sum + content.length, 0);
    if (others + bytes.length > this.#room) {
      throw new DiskError(`cannot write ${key}: ${bytes.length} bytes, ${this.#room - others} are free`);
    }
    this.#values.set(key, Uint8Array.from(bytes));
  }

  async delete(key) {
    this.#values.delete(key);
  }

  async keys(prefix = "") {
    return [...this.#values.keys()].filter((key) => key.startsWith(prefix));
  }
}
