// Stands for node:assert/strict in a browser, as far as tests of vectors use it.

/** Like JSON, but for every value: numbers by their bits, arrays and objects by what they are. */
function plain(value) {
  if (ArrayBuffer.isView(value)) return `${value.constructor.name}[${Array.from(value, plain).join()}]`;
  if (Array.isArray(value)) return `[${value.map(plain).join()}]`;
  if (value instanceof Map || value instanceof Set) return `${value.constructor.name}${plain([...value])}`;
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "number") return Object.is(value, -0) ? "-0" : String(value);
  if (value === null || typeof value !== "object") return typeof value === "string" ? JSON.stringify(value) : String(value);
  const entries = Object.keys(value).sort().map((name) => `${name}:${plain(value[name])}`);
  return `{${entries.join()}}`;
}

function hold(holds, text) {
  if (!holds) throw new Error(String(text).slice(0, 600));
}

const suits = (error, expected) => {
  if (expected === undefined) return true;
  if (expected instanceof RegExp) return expected.test(String(error));
  if (typeof expected !== "function") return Object.entries(expected).every(([name, part]) => (part instanceof RegExp ? part.test(error[name]) : plain(error[name]) === plain(part)));
  return expected === Error || expected.prototype instanceof Error ? error instanceof expected : expected(error) === true;
};

function thrown(work) {
  try {
    work();
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}

const settled = (work) =>
  Promise.resolve(typeof work === "function" ? work() : work).then(
    () => hold(false, "nothing was rejected"),
    (error) => error,
  );

export default {
  ok: (value, why = "not true") => hold(value, why),
  equal: (actual, expected) => hold(Object.is(actual, expected), `${plain(actual)} is not ${plain(expected)}`),
  notEqual: (actual, other) => hold(!Object.is(actual, other), `it is ${plain(actual)}`),
  deepEqual: (actual, expected) => hold(plain(actual) === plain(expected), `${plain(actual)} is not ${plain(expected)}`),
  match: (text, pattern) => hold(pattern.test(text), `${text} is not like ${pattern}`),
  throws: (work, expected) => {
    const error = thrown(work);
    hold(suits(error, expected), `another error: ${error}`);
  },
  rejects: async (work, expected) => {
    const error = await settled(work);
    hold(suits(error, expected), `another error: ${error}`);
  },
};
