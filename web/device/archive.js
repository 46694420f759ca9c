/** Zips of plain files, as models/archive.py writes them: nothing in them is compressed. */

import { text, view } from "./bytes.js";
import { BundleError } from "./errors.js";

const MAX_FILES = 100;
const MAX_BYTES = 2 ** 30;
const PLAIN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$/;

/** As the format says (PKWARE's APPNOTE, 4.3); all numbers are little-endian. */
const END = { signature: 0x06054b50, size: 22 };
const ENTRY = { signature: 0x02014b50, size: 46 };
const LOCAL = { signature: 0x04034b50, size: 30 };

/** Whether it is a file name without folders, safe on every system. @param {string} name */
export const isPlain = (name) => PLAIN.test(name);

/**
 * The files of a zip by name: views of `data`. Raises BundleError for what is no such zip, for names that are
 * not plain or occur twice, for too many or too large files.
 * @param {Uint8Array} data
 * @returns {Map<string, Uint8Array>}
 */
export function readZip(data) {
  const files = new Map();
  let left = MAX_BYTES;
  try {
    for (const { name, content } of entries(data)) {
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

/** @param {Uint8Array} data @returns {Generator<{name: string, content: Uint8Array}>} Throws RangeError. */
function* entries(data) {
  const bytes = view(data);
  const end = endOf(bytes);
  const count = bytes.getUint16(end + 10, true);
  if (count > MAX_FILES) throw new BundleError(`archive has ${count} files, at most ${MAX_FILES} are read`);
  let at = bytes.getUint32(end + 16, true);
  for (let i = 0; i < count; i += 1) {
    expect(bytes, at, ENTRY.signature);
    const method = bytes.getUint16(at + 10, true);
    const [packed, size] = [bytes.getUint32(at + 20, true), bytes.getUint32(at + 24, true)];
    const [nameSize, extraSize, noteSize] = [28, 30, 32].map((from) => bytes.getUint16(at + from, true));
    const name = text(data.subarray(at + ENTRY.size, at + ENTRY.size + nameSize));
    if (method !== 0 || packed !== size)
      throw new BundleError(`archive has ${JSON.stringify(name)} compressed, expected as it is`);
    yield { name, content: contentOf(data, bytes.getUint32(at + 42, true), size) };
    at += ENTRY.size + nameSize + extraSize + noteSize;
  }
}

/** Where the record at the end is, behind which only a note may stand. @param {DataView} bytes */
function endOf(bytes) {
  const least = Math.max(0, bytes.byteLength - END.size - 0xffff);
  for (let at = bytes.byteLength - END.size; at >= least; at -= 1) {
    if (bytes.getUint32(at, true) === END.signature) return at;
  }
  throw new RangeError(`${bytes.byteLength} bytes without an end of central directory`);
}

/** @param {DataView} bytes @param {number} at @param {number} signature */
function expect(bytes, at, signature) {
  if (bytes.getUint32(at, true) !== signature) throw new RangeError(`no entry at byte ${at}`);
}

/** @param {Uint8Array} data @param {number} at where its own header is @param {number} size */
function contentOf(data, at, size) {
  const bytes = view(data);
  expect(bytes, at, LOCAL.signature);
  const start = at + LOCAL.size + bytes.getUint16(at + 26, true) + bytes.getUint16(at + 28, true);
  if (start + size > data.length)
    throw new RangeError(`a file ends at byte ${start + size} of ${data.length}`);
  return data.subarray(start, start + size);
}
