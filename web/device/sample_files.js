// The encoding of the files that hold samples, and the choice of samples that are held out of training.

import { sha256 } from "./bytes.js";

const HELD_SHARE = 0.2;

/** Whether a sample is held out of training; it depends only on the sample's content, so that it never changes. */
export async function isHeld(raw) {
  const digest = await sha256(new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength));
  return new DataView(digest.buffer, digest.byteOffset).getUint32(0) < HELD_SHARE * 2 ** 32;
}

/** The types of values in files of samples, each by its number there. */
const TYPES = /** @type {any[]} */ ([Uint8Array, Float32Array, Int32Array]);

/** The file of samples: one byte, the number of the type; three of padding; and the values, little-endian. */
export function written(raw) {
  const bytes = new Uint8Array(4 + raw.byteLength);
  bytes[0] = TYPES.indexOf(raw.constructor);
  bytes.set(new Uint8Array(raw.buffer, raw.byteOffset, raw.byteLength), 4);
  return bytes;
}

/** The values of a file that `written` made. */
export function read(bytes) {
  return new TYPES[bytes[0]](bytes.slice(4).buffer);
}
