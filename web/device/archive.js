/** Reads zips of plain files, as models/bundles/archive.py writes them: nothing in them is compressed. */

import { BundleError } from "./errors.js";
import { countOf, entries } from "./zip.js";

const MAX_FILES = 100;
const MAX_BYTES = 2 ** 30;
const PLAIN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/;

/** Whether it is a file name without folders, safe on every system. @param {string} name */
export const isPlain = (name) => PLAIN.test(name);

/**
 * The files of a zip by name: views of `data`. Raises BundleError for bytes that are no such zip, for names
 * that are not plain or occur twice, for too many or too large files.
 * @param {Uint8Array} data
 * @returns {Map<string, Uint8Array>}
 */
export function readZip(data) {
  const files = new Map();
  let left = MAX_BYTES;
  try {
    const count = countOf(data);
    if (count > MAX_FILES) throw new BundleError(`archive has ${count} files, at most ${MAX_FILES} are read`);
    for (const { name, content, method, size } of entries(data)) {
      if (method !== 0 || content.length !== size) {
        throw new BundleError(`archive has ${JSON.stringify(name)} compressed, expected as it is`);
      }
      if (!isPlain(name) || files.has(name)) {
        throw new BundleError(
          `archive has an entry ${JSON.stringify(name.slice(0, 80))}, expected plain names once`,
        );
      }
      left -= content.length;
      if (left < 0) throw new BundleError(`archive unpacks to more than ${MAX_BYTES} bytes, refused`);
      files.set(name, content);
    }
  } catch (error) {
    if (error instanceof BundleError) throw error;
    throw new BundleError(`archive is not a sound zip: ${/** @type {Error} */ (error).message}`);
  }
  return files;
}
