/** A disk of files in a folder, for Node. A file is written beside its place, synced, and renamed. */
import { randomBytes } from "node:crypto";
import { mkdir, open, readFile, readdir, rename, unlink } from "node:fs/promises";
import { dirname, join, relative, sep } from "node:path";

import { DiskError } from "../device/errors.js";

const BESIDE = ".~";

/** @typedef {import("../device/disk.js").Disk} Disk */

/** @implements {Disk} */
export class FileDisk {
  #folder;

  /** @param {string} folder made with the first `put` */
  constructor(folder) {
    this.#folder = folder;
  }

  async get(key) {
    try {
      return new Uint8Array(await readFile(this.#path(key)));
    } catch (error) {
      if (error.code === "ENOENT") return null;
      throw failed("read", key, error);
    }
  }

  async put(key, bytes) {
    const path = this.#path(key);
    const beside = `${path}${BESIDE}${randomBytes(4).toString("hex")}`;
    try {
      await mkdir(dirname(path), { recursive: true });
      await written(beside, bytes);
      await rename(beside, path);
      await synced(dirname(path));
    } catch (error) {
      await unlink(beside).catch(() => {});
      throw failed("write", key, error);
    }
  }

  async delete(key) {
    try {
      await unlink(this.#path(key));
    } catch (error) {
      if (error.code !== "ENOENT") throw failed("remove", key, error);
    }
  }

  async keys(prefix = "") {
    try {
      const entries = await readdir(this.#folder, { recursive: true, withFileTypes: true });
      const paths = entries.filter((entry) => entry.isFile() && !entry.name.includes(BESIDE));
      const keys = paths.map((entry) => this.#keyOf(join(entry.parentPath ?? entry.path, entry.name)));
      return keys.filter((key) => key.startsWith(prefix));
    } catch (error) {
      if (error.code === "ENOENT") return [];
      throw failed("list", this.#folder, error);
    }
  }

  #path(key) {
    const parts = key.split("/").map((part) => encodeURIComponent(part).replaceAll("~", "%7E"));
    if (parts.some((part) => ["", ".", ".."].includes(part))) throw new DiskError(`'${key}' is no key of a disk`);
    return join(this.#folder, ...parts);
  }

  #keyOf(path) {
    return relative(this.#folder, path).split(sep).map(decodeURIComponent).join("/");
  }
}

async function written(path, bytes) {
  const file = await open(path, "wx", 0o600);
  try {
    await file.writeFile(bytes);
    await file.sync();
  } finally {
    await file.close();
  }
}

async function synced(folder) {
  const handle = await open(folder, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

function failed(verb, key, error) {
  return error instanceof DiskError ? error : new DiskError(`cannot ${verb} ${key}: ${error.message}`);
}
