/**
 * Types of the fields of messages. `read(value, where)` takes a value that MessagePack has decoded, `write(value,
 * where)` returns one for MessagePack to encode; both throw MessageError for a value of another type.
 *
 * Whole numbers that may be beyond 2**53 are bigint (`big`), all others are numbers. A float that has no
 * fraction is written as a whole number, which the other side reads as the same float.
 */
import { MessageError } from "./errors.js";

/** @typedef {{ read(value: any, where: string): any, write(value: any, where: string): any }} Type */

const named = (value) => {
  if (value === null || value === undefined) return "null";
  if (value instanceof Uint8Array) return "bytes";
  if (Array.isArray(value)) return "array";
  if (typeof value === "string") return "str";
  if (typeof value === "boolean") return "bool";
  if (typeof value === "bigint" || Number.isInteger(value)) return "int";
  return typeof value === "number" ? "float" : "object";
};

const wrong = (value, where, expected) => new MessageError(`${where} is ${named(value)}, expected ${expected}`);

/** A type whose values are not converted; `is` tells whether a value is of it. @returns {Type} */
function plain(expected, is) {
  const check = (value, where) => {
    if (!is(value)) throw wrong(value, where, expected);
    return value;
  };
  return { read: check, write: check };
}

/** A whole number from `from` to `to`, both included; at most 2**53. @returns {Type} */
export function int(from = -(2 ** 53), to = 2 ** 53) {
  const whole = big(BigInt(from), BigInt(to));
  return { read: (value, where) => Number(whole.read(value, where)), write: whole.write };
}

/** A bigint of 64 bits; `write` also takes a number. @returns {Type} */
export function big(from = -(2n ** 63n), to = 2n ** 64n - 1n) {
  const read = (value, where) => {
    if (typeof value !== "bigint" && !Number.isInteger(value)) throw wrong(value, where, "int");
    const whole = BigInt(value);
    if (whole < from || whole > to) throw new MessageError(`${where} is ${whole}, expected ${from} to ${to}`);
    return whole;
  };
  const write = (value, where) => {
    const whole = read(value, where);
    return whole >= -(2n ** 31n) && whole < 2n ** 32n ? Number(whole) : whole; // MessagePack's shortest
  };
  return { read, write };
}

/** @type {Type} */
export const float = {
  read: (value, where) => {
    if (typeof value !== "bigint" && typeof value !== "number") throw wrong(value, where, "float");
    return Number(value);
  },
  write: (value, where) => float.read(value, where),
};

export const bool = plain("bool", (value) => typeof value === "boolean");
/** Settings of a kind: each kind checks its own. */
export const anything = plain("a value", (value) => value !== undefined);

/** A text of at most `longest` characters. @returns {Type} */
export function str(longest = Infinity) {
  const check = (value, where) => {
    if (typeof value !== "string") throw wrong(value, where, "str");
    const length = [...value].length;
    if (length > longest) throw new MessageError(`${where} has ${length} characters, at most ${longest}`);
    return value;
  };
  return { read: check, write: check };
}

/** At least `least` and at most `longest` bytes. @returns {Type} */
export function bytes(longest = Infinity, least = 0) {
  const check = (value, where) => {
    if (!(value instanceof Uint8Array)) throw wrong(value, where, "bytes");
    if (value.length > longest) throw new MessageError(`${where} has ${value.length} bytes, at most ${longest}`);
    if (value.length < least) throw new MessageError(`${where} has ${value.length} bytes, expected ${least}`);
    return value;
  };
  return { read: check, write: check };
}

/** One of these words. @param {string[]} words @returns {Type} */
export function oneOf(...words) {
  const check = (value, where) => {
    if (!words.includes(value)) {
      const actual = typeof value === "string" ? JSON.stringify(value) : named(value);
      throw new MessageError(`${where} is ${actual}, expected ${words.join(", ")}`);
    }
    return value;
  };
  return { read: check, write: check };
}

/** @param {Type} type @returns {Type} */
export function listOf(type, most = Infinity, least = 0) {
  const each = (how) => (value, where) => {
    if (!Array.isArray(value)) throw wrong(value, where, "array");
    if (value.length > most) throw new MessageError(`${where} has ${value.length} items, expected at most ${most}`);
    if (value.length < least) throw new MessageError(`${where} has ${value.length} items, expected at least ${least}`);
    return Object.freeze(value.map((item, at) => type[how](item, `${where}[${at}]`)));
  };
  return { read: each("read"), write: each("write") };
}

/** A value of this type, or null. @param {Type} type @returns {Type} */
export const orNull = (type) => ({
  read: (value, where) => (value === null ? null : type.read(value, where)),
  write: (value, where) => (value === null ? null : type.write(value, where)),
});

/** Bytes, or a value of this type. @param {Type} type @returns {Type} */
export const orBytes = (type) => ({
  read: (value, where) => (value instanceof Uint8Array ? value : type.read(value, where)),
  write: (value, where) => (value instanceof Uint8Array ? value : type.write(value, where)),
});

/**
 * An object with these fields, in this order: [name, type], or [name, type, default]. It is encoded as an array. A
 * shorter array lacks the last fields; additional items of a longer one are ignored. `whole` may complete the object,
 * and throws MessageError if its fields do not fit each other.
 * @param {[string, Type, any?][]} fields @returns {Type}
 */
export function struct(fields, whole = (object, _where) => object) {
  const least = fields.filter((field) => field.length === 2).length;
  const read = (value, where) => {
    if (!Array.isArray(value)) throw wrong(value, where, "array");
    if (value.length < least) {
      throw new MessageError(`${where} has ${value.length} fields, expected at least ${least}`);
    }
    const object = {};
    fields.forEach(([name, type, otherwise], at) => {
      object[name] = at < value.length ? type.read(value[at], `${where}.${name}`) : otherwise;
    });
    return Object.freeze(whole(object, where));
  };
  const write = (value, where) => {
    const unknown = Object.keys(value).find((name) => !fields.some((field) => field[0] === name));
    if (unknown) throw new MessageError(`${where} has no ${unknown}`);
    const values = fields.map(([name, _, otherwise]) => (value[name] === undefined ? otherwise : value[name]));
    const object = whole(Object.fromEntries(fields.map(([name], at) => [name, values[at]])), where);
    return fields.map(([name, type]) => type.write(object[name], `${where}.${name}`));
  };
  return { read, write };
}

