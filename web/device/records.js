/**
 * Strict types for values from JSON or MessagePack: an unknown field is an error. A reader takes a value and its place,
 * for errors, and returns it checked; it throws RangeError for a value of another type.
 *
 * @typedef {(value: any, where: string) => any} Reader
 */

/** @param {string} where @param {string} expected @param {any} value @returns {never} */
export function refuse(where, expected, value) {
  const plain = (/** @type {string} */ _, /** @type {any} */ inner) => (typeof inner === "bigint" ? String(inner) : inner);
  const words = typeof value === "bigint" ? String(value) : (JSON.stringify(value, plain) ?? String(value));
  throw new RangeError(`${where} is ${words.slice(0, 60)}, expected ${expected}`);
}

/** @type {Reader} */
export const text = (value, where) => (typeof value === "string" ? value : refuse(where, "a text", value));

/** @type {Reader} */
export const truth = (value, where) =>
  typeof value === "boolean" ? value : refuse(where, "true or false", value);

/** @type {Reader} */
export const number = (value, where) => {
  if (typeof value === "bigint") return Number(value);
  return typeof value === "number" ? value : refuse(where, "a number", value);
};

/** A whole number. @param {number} least @param {number} most @returns {Reader} */
export const whole =
  (least = -Number.MAX_SAFE_INTEGER, most = Number.MAX_SAFE_INTEGER) =>
  (value, where) => {
    const plainNumber = typeof value === "bigint" ? Number(value) : value;
    if (Number.isSafeInteger(plainNumber) && plainNumber >= least && plainNumber <= most) return plainNumber;
    return refuse(where, `a whole number from ${least} to ${most}`, value);
  };

/** @param {any[]} values @returns {Reader} */
export const oneOf =
  (...values) =>
  (value, where) => {
    const choice = typeof value === "bigint" ? Number(value) : value;
    return values.includes(choice) ? choice : refuse(where, `one of ${values.join(", ")}`, value);
  };

/** @param {Reader} item @param {number} [least] of items @returns {Reader} */
export const listOf =
  (item, least = 0) =>
  (value, where) => {
    if (!Array.isArray(value) || value.length < least)
      return refuse(where, `a list of at least ${least}`, value);
    return value.map((entry, i) => item(entry, `${where}[${i}]`));
  };

/** @param {Reader} reader @returns {Reader} */
export const nullable = (reader) => (value, where) => (value === null ? null : reader(value, where));

/** An object with any names. @param {Reader} item @param {Reader} [name] @returns {Reader} */
export const dictOf =
  (item, name = text) =>
  (value, where) => {
    if (!isObject(value)) return refuse(where, "an object", value);
    const entries = Object.entries(value).map(([key, entry]) => [
      name(key, where),
      item(entry, `${where}.${key}`),
    ]);
    return Object.fromEntries(entries);
  };

/** @param {any} value */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * An object with exactly these fields; a field that is given as [reader, default] may be left out.
 * @param {Record<string, Reader | [Reader, any]>} fields @returns {Reader}
 */
export const record = (fields) => (value, where) => {
  if (!isObject(value)) return refuse(where, "an object", value);
  const unknown = Object.keys(value).find((name) => !Object.hasOwn(fields, name));
  if (unknown !== undefined) throw new RangeError(`${where} has an unknown field ${JSON.stringify(unknown)}`);
  const entries = Object.entries(fields).map(([name, field]) => {
    const [reader, ...rest] = Array.isArray(field) ? field : [field];
    if (Object.hasOwn(value, name)) return [name, reader(value[name], `${where}.${name}`)];
    if (rest.length) return [name, rest[0]];
    throw new RangeError(`${where} lacks the field ${name}`);
  });
  return Object.fromEntries(entries);
};
