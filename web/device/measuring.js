/** Measures this device's speed for one bundle, in seconds (device/engine/profiling.py). */

import { SoftmaxHead } from "./head.js";
import { SgdSteps } from "./optimizer.js";
import { drawn } from "./providers.js";
import { completed, measureSpeed } from "./timing.js";

/** @typedef {import("./cost.js").Speed} Speed */
/** @typedef {import("./timing.js").SpeedTrial} SpeedTrial */

/** The most that measuring may take in all, so that it delays an update little. */
const BUDGET_S = 2.5;
/** The least part of it for timing after the warm-up; and how long the warm-up runs forward passes. */
const LEAST_S = 1.5;
const WARM_S = 0.3;
/** The optimizer of most kinds. */
const STEP = { lr: 1e-3, momentum: 0.5, weightDecay: 1e-5 };
/** How many steps of the classifier alone are timed together: one takes only microseconds. */
const HEAD_STEPS = 50;

/**
 * Time forward passes, training steps and losses of this bundle. One graph is open at a time.
 * @param {any} model see engine.js @param {() => number} clock @returns {Promise<Speed>}
 */
export async function measured(model, clock) {
  const { graphs, sets } = model.manifest;
  const tuned = Object.keys(sets).map((tunable) => `train.${tunable}`);
  const candidates = ["forward", "train.all", "loss.all", ...tuned];
  const names = [...new Set(candidates)].filter((name) => Object.hasOwn(graphs, name));
  /** @type {Map<string, SpeedTrial>} */
  const trials = new Map();
  for (const name of names) {
    const samples = model.rows(graphs[name]);
    const { x, y } = drawn(model.manifest, samples);
    trials.set(name, { ...opened(model, name, x, y), samples, flops: graphs[name].flops });
  }
  trials.set("head", headSteps(model));
  const began = clock();
  await warmUp(names.map((name) => /** @type {SpeedTrial} */ (trials.get(name))), clock);
  const budgetS = Math.max(LEAST_S, BUDGET_S - (clock() - began));
  return completed(await measureSpeed(trials, clock, budgetS), graphs);
}

/**
 * Let the browser compile: it compiles code at its first run, and frequent code again, most of which is common to all
 * graphs.
 * @param {SpeedTrial[]} trials forward, and then the training step of the whole model, if there is one
 * @param {() => number} clock
 */
async function warmUp([forward, step], clock) {
  const end = clock() + WARM_S;
  while (clock() < end) await forward.run();
  await forward.close?.();
  await step?.run();
  await step?.close?.();
}

/**
 * `run` runs samples through a graph, `close` frees its memory. @param {any} model
 * @param {string} name
 */
function opened(model, name, /** @type {any} */ x, /** @type {Int32Array} */ y) {
  const [what, tunable] = name.split(".");
  /** @type {any} */
  let session = null;
  const close = async () => {
    session = null;
    await model.unload();
  };
  if (what === "forward") return { run: () => model.logits(x), close };
  if (what === "loss") return { run: async () => (session ??= await model.probe(tunable)).loss(x, y), close };
  const run = async () => {
    session ??= await trainerOf(model, tunable);
    await session.trainer.lossAndGrads(x, y);
    session.steps.step(session.trainer.params.vector, session.trainer.grads.vector);
  };
  return { run, close };
}

/** A trainer and the optimiser's steps for it. @param {any} model @param {string} tunable */
async function trainerOf(model, tunable) {
  const trainer = await model.trainer(tunable);
  return { trainer, steps: new SgdSteps(STEP, trainer.params.vector.length) };
}

/** Steps of the linear classifier on few samples, with hardly any arithmetic. @param {any} model */
function headSteps(model) {
  const head = new SoftmaxHead(model.manifest, model.weights);
  const features = new Float32Array(4 * model.manifest.head.features);
  const steps = new SgdSteps(STEP, head.params.vector.length);
  const run = async () => {
    for (let step = 0; step < HEAD_STEPS; step += 1) {
      head.lossAndGrads(features, new Int32Array(4), Int32Array.of(0, 1, 2, 3));
      steps.step(head.params.vector, head.grads.vector);
    }
  };
  return { run, samples: HEAD_STEPS, flops: 0 };
}
