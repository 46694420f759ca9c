/** Bytes: text, hex digits, base64url, little-endian numbers, sha256. */

const ENCODER = new TextEncoder();
const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const DIGITS = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0"));

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
export const utf8 = (text) => ENCODER.encode(text);

/** The text of UTF-8 bytes. Throws TypeError for other bytes. @param {Uint8Array} bytes */
export const text = (bytes) => DECODER.decode(bytes);

/** Hex digits, in lower case. @param {Uint8Array} bytes @returns {string} */
export function hex(bytes) {
  let digits = "";
  for (const byte of bytes) digits += DIGITS[byte];
  return digits;
}

/** @param {string} digits @returns {Uint8Array<ArrayBuffer>} Throws RangeError for other letters than hex digits. */
export function fromHex(digits) {
  if (!/^([0-9a-fA-F]{2})*$/.test(digits)) throw new RangeError(`${JSON.stringify(digits)} are no hex digits`);
  return Uint8Array.from(digits.match(/../g) ?? [], (two) => parseInt(two, 16));
}

/** The bytes of a word of base64url, with or without padding. Throws RangeError for another word. */
export function fromBase64Url(word) {
  try {
    const binary = atob(word.replaceAll("-", "+").replaceAll("_", "/").replace(/=+$/, ""));
    return Uint8Array.from(binary, (letter) => letter.charCodeAt(0));
  } catch {
    throw new RangeError("not a word of base64url");
  }
}

/** @param {Iterable<Uint8Array>} parts @returns {Uint8Array<ArrayBuffer>} */
export function concat(parts) {
  const list = [...parts];
  const whole = new Uint8Array(list.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of list) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

/** @param {Uint8Array} one @param {Uint8Array} other */
export function equal(left, other) {
  if (left.length !== other.length) return false;
  for (let at = 0; at < left.length; at += 1) if (left[at] !== other[at]) return false;
  return true;
}

/** A view on the same bytes. @param {Uint8Array} bytes @returns {DataView} */
export const view = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** The number that `size` bytes encode, the lowest byte first. @param {Uint8Array} bytes @returns {bigint} */
export function littleEndian(bytes, at = 0, size = bytes.length) {
  let value = 0n;
  for (let place = at + size - 1; place >= at; place -= 1) value = (value << 8n) | BigInt(bytes[place]);
  return value;
}

/** A whole number, 0 or more, in `size` bytes, the lowest first. @param {bigint} value */
export function toLittleEndian(value, size) {
  const bytes = new Uint8Array(size);
  for (let at = 0; at < size; at += 1) bytes[at] = Number((value >> BigInt(8 * at)) & 0xffn);
  return bytes;
}

/** The hash, 32 bytes. @param {Uint8Array} bytes not in shared memory @returns {Promise<Uint8Array<ArrayBuffer>>} */
export async function sha256(bytes) {
  return new Uint8Array(await crypto.subtle.digest("SHA-256", /** @type {any} */ (bytes)));
}
