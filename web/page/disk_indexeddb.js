/** A Disk (device/disk.js) in IndexedDB, for the page and its worker. */

import { DiskError } from "../device/errors.js";

const STORE = "files";

/** @param {string} name of the database, see rpc.js @returns {Promise<IndexedDbDisk>} Rejects with DiskError. */
export async function openDisk(name) {
  const opening = indexedDB.open(name, 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  const database = await answer(opening);
  database.onversionchange = () => database.close(); // otherwise the database could not be deleted
  return new IndexedDbDisk(database);
}

/** Deletes everything that was ever stored. @param {string} name */
export async function deleteDisk(name) {
  await answer(indexedDB.deleteDatabase(name));
}

export class IndexedDbDisk {
  /** @param {IDBDatabase} database */
  constructor(database) {
    this._database = database;
  }

  /** @param {string} key @returns {Promise<Uint8Array | null>} */
  async get(key) {
    return (await answer(this._files("readonly").get(key))) ?? null;
  }

  /** Stores bytes atomically. @param {string} key @param {Uint8Array} bytes */
  async put(key, bytes) {
    const whole = bytes.byteLength === bytes.buffer.byteLength ? bytes : bytes.slice();
    await this._write((files) => files.put(whole, key));
  }

  /** @param {string} key */
  async delete(key) {
    await this._write((files) => files.delete(key));
  }

  /** @param {string} prefix @returns {Promise<string[]>} */
  async keys(prefix = "") {
    const range = IDBKeyRange.bound(prefix, `${prefix}\uffff`);
    return (await answer(this._files("readonly").getAllKeys(range))).map(String);
  }

  close() {
    this._database.close();
  }

  /** @param {IDBTransactionMode} mode */
  _files(mode) {
    try {
      return this._database.transaction(STORE, mode, { durability: "strict" }).objectStore(STORE);
    } catch (error) {
      throw new DiskError(`the browser's storage is closed (${error.name}): reload the page`);
    }
  }

  async _write(change) {
    const files = this._files("readwrite");
    change(files);
    await new Promise((resolve, reject) => {
      files.transaction.oncomplete = () => resolve(undefined);
      files.transaction.onabort = () => reject(refusal(files.transaction.error));
    });
  }
}

/** @template T @param {IDBRequest<T>} asked @returns {Promise<T>} */
function answer(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(refusal(request.error));
  });
}

function refusal(error) {
  if (error?.name === "QuotaExceededError") return new DiskError("the browser's storage is full: delete something on this device");
  return new DiskError(`the browser's storage refused: ${error?.message ?? "no reason given"}`);
}
