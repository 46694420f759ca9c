// Stands for node:assert/strict in a browser, as far as tests of vectors use it.

/** Like JSON, but for every value: numbers by their bits, arrays and objects by what they are. */
function told(value) {
  if (ArrayBuffer.isView(value)) return `${value.constructor.name}[${Array.from(value, told).join()}]`;
  if (Array.isArray(value)) return `[${value.map(told).join()}]`;
  if (value instanceof Map || value instanceof Set) return `${value.constructor.name}${told([...value])}`;
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "number") return Object.is(value, -0) ? "-0" : String(value);
  if (value === null || typeof value !== "object") return typeof value === "string" ? JSON.stringify(value) : String(value);
  const entries = Object.keys(value).sort().map((name) => `${name}:${told(value[name])}`);
  return `{${entries.join()}}`;
}

function hold(holds, text) {
  if (!holds) throw new Error(String(text).slice(0, 600));
}

const suits = (error, wanted) => {
  if (wanted === undefined) return true;
  if (wanted instanceof RegExp) return wanted.test(String(error));
  if (typeof wanted !== "function") return Object.entries(wanted).every(([name, one]) => (one instanceof RegExp ? one.test(error[name]) : told(error[name]) === told(one)));
  return wanted === Error || wanted.prototype instanceof Error ? error instanceof wanted : wanted(error) === true;
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
  equal: (found, wanted) => hold(Object.is(found, wanted), `${told(found)} is not ${told(wanted)}`),
  notEqual: (found, other) => hold(!Object.is(found, other), `it is ${told(found)}`),
  deepEqual: (found, wanted) => hold(told(found) === told(wanted), `${told(found)} is not ${told(wanted)}`),
  match: (text, wanted) => hold(wanted.test(text), `${text} is not like ${wanted}`),
  throws: (work, wanted) => {
    const error = thrown(work);
    hold(suits(error, wanted), `another error: ${error}`);
  },
  rejects: async (work, wanted) => {
    const error = await settled(work);
    hold(suits(error, wanted), `another error: ${error}`);
  },
};
