// Maps the names of classes on this device to class numbers of the task (models/data/labels.py).

import { DataError } from "./errors.js";

/**
 * The class number of a label. Case and the encoding of accents are ignored if that is unambiguous. A whole number is a
 * class number of the task, unless the task has labels that are numbers.
 * @param {string | number} label @param {string[]} labels of the task, in order @throws DataError
 */
export function numberOf(label, labels) {
  const exact = labels.indexOf(String(label));
  if (exact >= 0) return exact;
  const alike = labels.filter((name) => folded(name) === folded(String(label)));
  if (alike.length === 1) return labels.indexOf(alike[0]);
  const numbered = !labels.some((name) => /^\s*\d+\s*$/.test(name)) && /^\d+$/.test(String(label));
  if (numbered && Number(label) < labels.length) return Number(label);
  throw new DataError(`label '${String(label).slice(0, 40)}' is not one of this task: ${labels.slice(0, 12).join(", ")}`);
}

const folded = (label) => label.trim().toLowerCase().normalize("NFC");
