// Numbers for people. null is a figure that was not measured.

import { now as clockNow } from "./api.js";

const NONE = "–";

export const percent = (share) => (share === null ? NONE : `${(100 * share).toFixed(1)} %`);
export const plain = (value) => (value === null ? NONE : value.toPrecision(3));
/** How a metric is written: an accuracy in percent, others as numbers. */
export const metric = (name) => (name.endsWith("accuracy") ? percent : plain);
export const count = (value) => value.toLocaleString("en");

/** Units of an axis: [size, name], the largest first; that of the highest value is taken. */
export const UNITS = {
  percent: [[0.01, "%"]],
  bytes: [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]],
  joules: [[1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"]],
  seconds: [[86400, "days"], [3600, "hours"], [60, "minutes"], [1, "seconds"], [1e-3, "milliseconds"]],
};

export function bytes(value) {
  if (value === null) return NONE;
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function joules(value) {
  if (value === null) return NONE;
  for (const [unit, size] of [["MJ", 1e6], ["kJ", 1e3]]) {
    if (value >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
  }
  return `${Number(value.toPrecision(3))} J`;
}

export function seconds(value) {
  if (value === null) return NONE;
  if (value >= 86400) return `${(value / 86400).toFixed(1)} d`;
  if (value >= 3600) return `${(value / 3600).toFixed(1)} h`;
  if (value >= 120) return `${(value / 60).toFixed(1)} min`;
  return `${Number(value.toPrecision(3))} s`;
}

/** "12 s ago", by the aggregator's clock; `now` and `at` in seconds. */
export function ago(at, now = clockNow()) {
  if (at === null) return NONE;
  const since = Math.max(0, Math.round(now - at));
  return since < 2 ? "now" : `${seconds(since)} ago`;
}

export function clock(at) {
  if (at === null) return NONE;
  return new Date(1000 * at).toLocaleString("sv").slice(5);
}
