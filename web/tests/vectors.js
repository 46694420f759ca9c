/** Reads the vectors that the Python side wrote (tests/web/writers/). */
import { readFileSync } from "node:fs";

import { fromHex } from "../device/bytes.js";

/** @param {string} name @returns {any} */
export function vectors(name) {
  return JSON.parse(readFileSync(new URL(`../vectors/${name}.json`, import.meta.url), "utf8"));
}

/** Converts {"hex": ...} to bytes and {"big": ...} to bigint, at any depth. */
export function revived(value) {
  if (Array.isArray(value)) return value.map(revived);
  if (value === null || typeof value !== "object") return value;
  if (Object.keys(value).join() === "hex") return fromHex(value.hex);
  if (Object.keys(value).join() === "big") return BigInt(value.big);
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revived(item)]));
}
