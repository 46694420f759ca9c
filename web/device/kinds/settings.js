/**
 * Checks the settings of kinds, which come over the wire, before they are used (strategies/settings.py). The checks
 * throw RangeError, naming the setting, its value and what was expected.
 */

import { TUNABLE_SETS } from "../manifest_schema.js";
import { number, oneOf, record, truth, whole } from "../records.js";

/** The largest whole number that settings take, such as epochs, batch size and shots: more is a mistake. */
export const MOST = 1_000_000;

/**
 * @param {any} settings
 * @param {(value: number) => boolean} may
 * @param {string} expected
 * @param {string[]} names
 */
function all(settings, may, expected, names) {
  const wrong = names.find((name) => !may(settings[name]));
  if (wrong) throw new RangeError(`${wrong} is ${settings[wrong]}, expected ${expected}`);
}

/** From 1 to `most`. @param {any} settings @param {string[]} names @param {number} [most] */
export function counts(settings, names, most = MOST) {
  all(settings, (value) => value >= 1 && value <= most, `1 to ${most}`, names);
}

/** Finite and more than 0. @param {any} settings @param {string[]} names */
export function positive(settings, ...names) {
  all(settings, (value) => Number.isFinite(value) && value > 0, "more than 0", names);
}

/** Finite and 0 or more. @param {any} settings @param {string[]} names */
export function notNegative(settings, ...names) {
  all(settings, (value) => Number.isFinite(value) && value >= 0, "0 or more", names);
}

/** @param {any} settings @param {string[]} names */
export function belowOne(settings, ...names) {
  all(settings, (value) => value >= 0 && value < 1, "at least 0 and less than 1", names);
}

/** A tunable set that bundles may have. @param {string} name */
export function tunableSet(name) {
  if (TUNABLE_SETS.includes(name)) return;
  throw new RangeError(`there is no tunable set '${name}'; there are ${TUNABLE_SETS.join(", ")}`);
}

/** A share from 0 to a half. @type {import("../records.js").Reader} */
const uptoHalf = (value, where) => {
  const share = number(value, where);
  if (share >= 0 && share <= 0.5) return share;
  throw new RangeError(`${where} is ${share}, expected 0 to 0.5`);
};

/** The class statistics that a task asks for beside updates. */
export const statistics = record({
  numbers: [oneOf("float16", "int8"), "float16"],
  smallest_count: [whole(1, MOST), 2],
  samples: [whole(0, MOST), 40],
  most_classes: [whole(0, MOST), 0],
  moments: [truth, true],
  features: [whole(1, 4096), 512],
  projection_seed: [whole(0, MOST), 0],
  hold_out: [uptoHalf, 0],
});
