/** Reads arrays from .npz files: zips of .npy files, stored or deflated. */

import { concat } from "./bytes.js";
import { DataError, oneLine } from "./errors.js";
import { readNpy } from "./npy.js";
import { entries } from "./zip.js";

/** Most bytes of all arrays of a file, unpacked. */
const LARGEST = 2 ** 30;
const AS_IT_IS = 0;
const DEFLATED = 8;

/**
 * The wanted arrays that the file has. @throws DataError
 * @param {Uint8Array} bytes of the file
 * @param {string[]} wanted
 * @returns {Promise<Map<string, import("./npy.js").Stored>>}
 */
export async function npz(bytes, names) {
  const arrays = new Map();
  let left = LARGEST;
  for (const entry of listed(bytes)) {
    const name = entry.name.replace(/\.npy$/, "");
    if (!names.includes(name)) continue;
    if (arrays.has(name)) throw new DataError(`${name} is there twice, expected it once`);
    left -= entry.size;
    if (left < 0) throw new DataError(`${entry.name} is said to be ${entry.size} bytes, at most ${left + entry.size} are read`);
    arrays.set(name, await arrayOf(entry));
  }
  return arrays;
}

function listed(bytes) {
  try {
    return [...entries(bytes)];
  } catch (error) {
    throw new DataError(`not a .npz file: ${oneLine(error)}`);
  }
}

/** @param {import("./zip.js").Entry} entry */
async function arrayOf(entry) {
  const content = await unpacked(entry);
  try {
    return readNpy(content);
  } catch (error) {
    if (!(error instanceof DataError)) throw error;
    throw new DataError(`${entry.name}: ${error.message}`);
  }
}

/** The content, which must have exactly the size that the entry states. @param {import("./zip.js").Entry} entry */
async function unpacked({ name, method, content, size }) {
  if (method !== AS_IT_IS && method !== DEFLATED) {
    throw new DataError(`${name} is packed in a way (${method}) that is not read: expected deflate, or none`);
  }
  const plain = method === DEFLATED ? await inflated(name, content, size) : content;
  if (plain.length !== size) throw new DataError(`${name} is ${plain.length} bytes, it says ${size}`);
  return plain;
}

/** The inflated content; stops with DataError as soon as it has more than `size` bytes. */
async function inflated(name, content, size) {
  const stream = new Blob([content]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const reader = stream.getReader();
  const parts = [];
  let left = size;
  while (true) {
    const { done, value } = await reader.read().catch((error) => {
      throw new DataError(`${name} cannot be unpacked: ${oneLine(error)}`);
    });
    if (done) return concat(parts);
    parts.push(value);
    left -= value.length;
    if (left >= 0) continue;
    reader.cancel().catch(() => {}); // the rest is not needed
    throw new DataError(`${name} unpacks to more than the ${size} bytes that it says`);
  }
}
