/**
 * What a device knows of its speed and memory: measured once, corrected by each round, kept on disk
 * (device/training/calibration.py).
 */

import { text, utf8 } from "./bytes.js";
import { Speed } from "./cost.js";
import { FADE } from "./work.js";

/** Growth assumed for a kind given up for lack of memory, times what was assumed; and the most assumed. */
const OUTGROWN = 1.25;
const MOST = 4;
const KEY = "speed";

/**
 * A device's speed, and how far predictions were off, by kind; see Profile in cost.js.
 * @typedef {{speed: Speed, corrections: Map<string, number>, growth: Map<string, number>}} Corrections
 */

/** Keeps what was learnt, by bundle and engine, in one JSON file on the disk. A damaged file is measured anew. */
export class Measurements {
  #disk;
  #log;
  /** @type {Map<string, Corrections> | null} */
  #entries = null;

  /** @param {any} disk see disk.js @param {(level: string, line: string) => void} log */
  constructor(disk, log) {
    this.#disk = disk;
    this.#log = log;
  }

  /**
   * What is kept under this name; null if nothing is. @param {string} name
   * @returns {Promise<Corrections | null>}
   */
  async get(name) {
    return (await this.#all()).get(name) ?? null;
  }

  /** Keep what was learnt. If the disk fails, a warning is logged, and it lasts until the process ends. */
  async put(/** @type {string} */ name, /** @type {Corrections} */ calibration) {
    const calibrations = await this.#all();
    calibrations.set(name, calibration);
    try {
      await this.#disk.put(KEY, utf8(JSON.stringify(calibrations, asPlain)));
    } catch (error) {
      this.#log("warning", `what was measured cannot be kept: ${error}`);
    }
  }

  async #all() {
    if (this.#entries) return this.#entries;
    this.#entries = new Map();
    try {
      const bytes = await this.#disk.get(KEY);
      const entries = bytes ? JSON.parse(text(bytes)) : [];
      for (const [name, entry] of entries) this.#entries.set(name, correctionsOf(entry));
    } catch (error) {
      this.#log("warning", `what was measured is not readable (${error}): measuring anew`);
    }
    return this.#entries;
  }
}

/** A replacer for JSON that writes maps as lists of pairs. @param {string} _ @param {any} value */
function asPlain(_, value) {
  return value instanceof Map ? [...value] : value;
}

/** @param {any} kept @returns {Corrections} Throws TypeError for other content. */
function correctionsOf({ speed, corrections, growth }) {
  const { seconds, opening, heldBytes } = speed;
  const maps = { seconds: new Map(seconds), opening: new Map(opening), heldBytes: new Map(heldBytes) };
  const measured = new Speed(speed.flopsPerS, { ...speed, ...maps });
  return { speed: measured, corrections: new Map(corrections), growth: new Map(growth) };
}

/**
 * The profile's growth after this round: bytes that an update added to the process, over those predicted.
 * A larger value holds at once, and `FADE` of the excess is forgotten in each round. For a kind that was given
 * up for lack of memory, the bytes are not known: `OUTGROWN` times what was assumed.
 * @param {import("./cost.js").Profile} profile @param {import("./work.js").WorkOutcome} outcome
 */
export function grown(profile, outcome) {
  const oldGrowth = profile.growth;
  const growth = new Map([...oldGrowth].map(([kind, old]) => [kind, 1 + (1 - FADE) * (old - 1)]));
  const factors = new Map(outcome.outOfMemoryKinds.map((kind) => [kind, OUTGROWN * (oldGrowth.get(kind) ?? 1)]));
  const { chosen } = outcome.plan;
  if (chosen?.cost && outcome.contribution && !outcome.gaveUp.length) {
    const idle = profile.memory.residentBytes;
    const added = (outcome.peakMemoryBytes - idle) / (chosen.cost.peakMemoryBytes - idle);
    factors.set(chosen.kind, added * (oldGrowth.get(chosen.kind) ?? 1));
  }
  for (const [kind, factor] of factors) {
    growth.set(kind, Math.min(MOST, Math.max(1, factor, growth.get(kind) ?? 1)));
  }
  return new Map([...growth].filter(([, factor]) => factor > 1));
}
