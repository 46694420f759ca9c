/**
 * Times runs of graphs, in seconds, and predicts the graphs that were not timed (profiles/measure.py and
 * device/engine/profiling.py).
 */

import { Speed } from "./cost.js";
import { OutOfMemory } from "./errors.js";
import { TRAINING } from "./manifest_schema.js";

/** The most runs of a graph after the first. */
const REPEATS = 15;

/**
 * A graph to time: `run` puts `samples` samples through it, at `flops` operations each. The first run opens the graph.
 * `close` is called after the timing, also if it failed.
 * @typedef {{run: () => Promise<unknown>, samples: number, flops: number,
 *   close?: () => void | Promise<void>}} SpeedTrial
 */

/**
 * Times each graph, in the order of `trials`, within `budgetS` seconds in all. Each trial runs once to open the graph
 * and then again, within its share of the time left. The fastest run counts: WASM gets faster as the browser compiles
 * frequent code, and other processes only slow a run down. A graph is not measured if no time is left for it, or if the
 * memory is too small. The first graph is always measured, or its error thrown.
 * @param {Map<string, SpeedTrial>} trials @param {() => number} clock @param {number} budgetS
 * @returns {Promise<Speed>}
 */
export async function measureSpeed(trials, clock, budgetS) {
  /** @type {Map<string, {run: number, opening: number}>} */
  const took = new Map();
  let rate = 0;
  let position = 0;
  const end = clock() + budgetS;
  for (const [name, trial] of trials) {
    const left = trials.size - position;
    position += 1;
    const expected = rate ? (trial.samples * trial.flops) / rate : 0;
    const now = clock();
    if (took.size && now + 2 * expected > end) continue;
    try {
      took.set(name, await timed(trial, clock, now + (end - now) / left));
    } catch (error) {
      if (!took.size || !(error instanceof OutOfMemory)) throw error;
      continue;
    } finally {
      await trial.close?.();
    }
    rate ||= (trial.samples * trial.flops) / Math.max(took.get(name)?.run ?? 0, 1e-9);
  }
  if (!took.size) throw new RangeError("measureSpeed was given nothing to time");
  return speedOf(trials, took);
}

/** @param {Map<string, SpeedTrial>} trials @param {Map<string, {run: number, opening: number}>} took */
function speedOf(trials, took) {
  const seconds = new Map();
  const opening = new Map();
  for (const [name, trial] of took) {
    seconds.set(name, trial.run / (trials.get(name)?.samples ?? 1));
    opening.set(name, trial.opening);
  }
  const [first] = took.keys();
  const rate = (trials.get(first)?.flops ?? 0) / Math.max(seconds.get(first), 1e-9);
  return new Speed(rate, { seconds, opening, source: "measured on this bundle" });
}

/** @param {SpeedTrial} trial @param {() => number} clock @param {number} end */
async function timed(trial, clock, end) {
  const runs = [await once(trial, clock)];
  while (runs.length <= REPEATS && (runs.length === 1 || clock() + runs[runs.length - 1] < end)) {
    runs.push(await once(trial, clock));
  }
  const run = Math.min(...runs.slice(1));
  return { run, opening: Math.max(0, runs[0] - run) };
}

/** @param {SpeedTrial} trial @param {() => number} clock */
async function once(trial, clock) {
  const began = clock();
  await trial.run();
  return clock() - began;
}

/**
 * The speed with the graphs that were not measured. They are taken to be as fast, operation for operation, as measured
 * ones of their sort, and as slow to open for their size. @param {Speed} speed
 * @param {Record<string, any>} graphs of the
 * manifest @returns {Speed}
 */
export function completed(speed, graphs) {
  const names = Object.keys(graphs);
  const measured = names.filter((name) => speed.seconds.has(name));
  const seconds = new Map(measured.map((name) => [name, speed.seconds.get(name) ?? 0]));
  const opening = new Map(measured.map((name) => [name, speed.opening.get(name) ?? 0]));
  const bytes = measured.reduce((sum, name) => sum + graphs[name].bytes, 0);
  const aByte = [...opening.values()].reduce((sum, duration) => sum + duration, 0) / bytes;
  for (const name of names.filter((graph) => !speed.seconds.has(graph))) {
    const alike = alikeOf(name, measured);
    const flops = alike.reduce((sum, other) => sum + graphs[other].flops, 0);
    const took = alike.reduce((sum, other) => sum + (speed.seconds.get(other) ?? 0), 0);
    seconds.set(name, (graphs[name].flops * took) / Math.max(flops, 1));
    opening.set(name, graphs[name].bytes * aByte);
  }
  const missing = `${names.length - measured.length} of ${names.length} graphs by their operations`;
  const source = `${speed.source}; ${missing}`;
  return new Speed(speed.flopsPerS, { seconds, opening, source, stepS: speed.seconds.get("head") ?? 0 });
}

/** Whether a graph of this name computes gradients. @param {string} graph */
const trains = (graph) => TRAINING.includes(graph.split(".")[0]);

/**
 * Measured graphs that do the same on another set; else those that train, or do not, alike; else all.
 * @param {string} name @param {string[]} measured
 */
function alikeOf(name, measured) {
  const what = name.split(".")[0];
  const same = measured.filter((other) => other.split(".")[0] === what);
  if (same.length) return same;
  const sort = measured.filter((other) => trains(other) === trains(name));
  return sort.length ? sort : measured;
}

/**
 * The faster of two measurements of the same bundle, graph by graph. @param {Speed} one @param {Speed} other
 */
export function quicker(first, other) {
  const least = (/** @type {Map<string, number>} */ left, /** @type {Map<string, number>} */ right) =>
    new Map([...left].map(([name, value]) => [name, Math.min(value, right.get(name) ?? value)]));
  return new Speed(Math.max(first.flopsPerS, other.flopsPerS), {
    ...first,
    seconds: least(first.seconds, other.seconds),
    opening: least(first.opening, other.opening),
    stepS: Math.min(first.stepS, other.stepS),
  });
}
