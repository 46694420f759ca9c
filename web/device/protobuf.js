/**
 * Reads and writes the fields of protocol buffers, as much as ONNX files need. Part of models/bundles/graph_check.py.
 */

import { concat } from "./bytes.js";
import { BundleError } from "./errors.js";

export const VARINT = 0;
const FIXED_64 = 1;
export const DELIMITED = 2;
export const FIXED_32 = 5;
/** A field's number has 29 bits, and its type 3. */
const MOST_KEY = 2 ** 32;

/**
 * @typedef {{number: number, wire: number, content: Uint8Array, encoded: Uint8Array}} Field content: the bytes of a
 *   DELIMITED field, else empty; encoded: all of it, with its tag
 */

/**
 * The fields of a message, in order, as views of `data`. Raises BundleError if it is no protocol buffer.
 * @param {Uint8Array} data
 * @returns {Generator<Field>}
 */
export function* fields(data) {
  for (let at = 0; at < data.length;) {
    const begin = at;
    const key = varint(data, at);
    if (key.value >= MOST_KEY) throw new BundleError(`no field has the number ${Math.floor(key.value / 8)}, at byte ${begin}`);
    at = key.end;
    let content = data.subarray(0, 0);
    const wire = key.value % 8;
    if (wire === VARINT) at = varint(data, at).end;
    else if (wire === FIXED_64) at += 8;
    else if (wire === FIXED_32) at += 4;
    else if (wire === DELIMITED) {
      const length = varint(data, at);
      at = length.end + length.value;
      content = data.subarray(length.end, at);
    } else throw new BundleError(`no field of type ${wire} is known, at byte ${begin}`);
    if (at > data.length) throw new BundleError(`a field ends at byte ${at} of ${data.length}`);
    yield { number: Math.floor(key.value / 8), wire, content, encoded: data.subarray(begin, at) };
  }
}

/** The value of a VARINT field; beyond 2**53 it is not exact. @param {Field} field @returns {number} */
export function numberOf({ encoded }) {
  return varint(encoded, varint(encoded, 0).end).value;
}

/** @param {Uint8Array} data @param {number} at */
function varint(data, at) {
  let value = 0;
  for (let shift = 0; shift < 70 && at < data.length; shift += 7) {
    const byte = data[at++];
    value += (byte & 0x7f) * 2 ** shift;
    if (byte < 0x80) return { value, end: at };
  }
  throw new BundleError(`no number ends at byte ${at}`);
}

/** @param {number} value 0 or more */
function encodedVarint(value) {
  const bytes = [];
  let rest = value;
  for (; rest >= 0x80; rest = Math.floor(rest / 0x80)) bytes.push((rest % 0x80) | 0x80);
  return Uint8Array.from([...bytes, rest]);
}

/** @param {number} number @param {Uint8Array} content @returns {Uint8Array} */
export function delimited(number, content) {
  return concat([encodedVarint(8 * number + DELIMITED), encodedVarint(content.length), content]);
}
