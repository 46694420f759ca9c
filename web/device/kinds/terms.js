/** Local terms that a browser trains with: FedProx and FSCProx (strategies/terms). */

import { number, oneOf, record } from "../records.js";

/** @type {import("../records.js").Reader} */
const weight = (value, where) => {
  const share = number(value, where);
  if (Number.isFinite(share) && share > 0) return share;
  throw new RangeError(`${where} is ${share}, expected more than 0`);
};

/** @type {Record<string, import("../records.js").Reader>} */
const TERMS = {
  fedprox: record({ mu: [weight, 0.01] }),
  fscprox: record({ mu: [weight, 0.01], anchor: [oneOf("few-shot", "base"), "few-shot"] }),
};

/** A table of terms by name. @type {import("../records.js").Reader} */
export const terms = (value, where) => {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new RangeError(`${where} is no table by name of a term`);
  const read = Object.entries(value).map(([name, settings]) => {
    if (!Object.hasOwn(TERMS, name)) throw new RangeError(`${where}.${name} is set: a browser does not train with it`);
    return [name, TERMS[name](settings, `${where}.${name}`)];
  });
  return Object.fromEntries(read);
};
