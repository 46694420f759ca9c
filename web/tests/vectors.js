/** The vectors that the Python side wrote (tests/web/writers/). */
import { readFileSync } from "node:fs";

/** @param {string} name @returns {any} */
export function vectors(name) {
  return JSON.parse(readFileSync(new URL(`../vectors/${name}.json`, import.meta.url), "utf8"));
}
