/** Lists the files of a zip and finds their content, without unpacking it (PKWARE's APPNOTE, 4.3). */

import { text, view } from "./bytes.js";

/** Records of a zip; all numbers are little-endian, sizes in bytes. */
const END = { signature: 0x06054b50, size: 22 };
const ENTRY = { signature: 0x02014b50, size: 46 };
const LOCAL = { signature: 0x04034b50, size: 30 };

/**
 * One file. `method`: 0 if it is stored, 8 if it is deflated; `size`: the unpacked size that the zip states.
 * @typedef {{name: string, method: number, content: Uint8Array, size: number}} Entry content: a view
 */

/** The number of files that the zip states. Throws RangeError. @param {Uint8Array} data */
export function countOf(data) {
  const bytes = view(data);
  return bytes.getUint16(endOf(bytes) + 10, true);
}

/**
 * The files in the order of the list. Throws RangeError for bytes that are no zip or end too early, TypeError for names
 * that are not UTF-8. @param {Uint8Array} data @returns {Generator<Entry>}
 */
export function* entries(data) {
  const bytes = view(data);
  const end = endOf(bytes);
  const count = bytes.getUint16(end + 10, true);
  let at = bytes.getUint32(end + 16, true);
  for (let i = 0; i < count; i += 1) {
    expect(bytes, at, ENTRY.signature);
    const method = bytes.getUint16(at + 10, true);
    const [packed, size, where] = [20, 24, 42].map((from) => bytes.getUint32(at + from, true));
    const [nameSize, extraSize, noteSize] = [28, 30, 32].map((from) => bytes.getUint16(at + from, true));
    const name = text(data.subarray(at + ENTRY.size, at + ENTRY.size + nameSize));
    yield { name, method, content: contentOf(data, where, packed), size };
    at += ENTRY.size + nameSize + extraSize + noteSize;
  }
}

/** The place of the end record, after which only a comment may follow. @param {DataView} bytes */
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

/** @param {Uint8Array} data @param {number} at the place of the file's own header @param {number} size */
function contentOf(data, at, size) {
  const bytes = view(data);
  expect(bytes, at, LOCAL.signature);
  const start = at + LOCAL.size + bytes.getUint16(at + 26, true) + bytes.getUint16(at + 28, true);
  if (start + size > data.length)
    throw new RangeError(`a file ends at byte ${start + size} of ${data.length}`);
  return data.subarray(start, start + size);
}
