/** How fast a bundle is on this device, as client/selection/profiling.py. In seconds. */

import { SoftmaxHead } from "./head.js";
import { SgdSteps } from "./optimizer.js";
import { drawn } from "./providers.js";
import { completed, measureSpeed } from "./timing.js";

/** @typedef {import("./cost.js").Speed} Speed */
/** @typedef {import("./timing.js").Trial} Trial */

/** What measuring may take in all; an update is not put off for longer. */
const BUDGET_S = 2.5;
/** What of it is left at least, when all is warm; and how long forward passes are run before. */
const LEAST_S = 1.5;
const WARM_S = 0.3;
/** As most kinds train. */
const STEP = { lr: 1e-3, momentum: 0.5, weightDecay: 1e-5 };
/** How many steps of the classifier alone are timed together: one takes some microseconds. */
const HEAD_STEPS = 50;

/**
 * Time forward passes, training steps and losses of this bundle. One graph is held at a time.
 * @param {any} model see engine.js @param {() => number} clock @returns {Promise<Speed>}
 */
export async function measured(model, clock) {
  const { graphs, sets } = model.manifest;
  const tuned = Object.keys(sets).map((tunable) => `train.${tunable}`);
  const wanted = ["forward", "train.all", "loss.all", ...tuned];
  const names = [...new Set(wanted)].filter((name) => Object.hasOwn(graphs, name));
  /** @type {Map<string, Trial>} */
  const trials = new Map();
  for (const name of names) {
    const samples = model.rows(graphs[name]);
    const { x, y } = drawn(model.manifest, samples);
    trials.set(name, { ...opened(model, name, x, y), samples, flops: graphs[name].flops });
  }
  trials.set("head", headSteps(model));
  const began = clock();
  await warmUp(names.map((name) => /** @type {Trial} */ (trials.get(name))), clock);
  const budgetS = Math.max(LEAST_S, BUDGET_S - (clock() - began));
  return completed(await measureSpeed(trials, clock, budgetS), graphs);
}

/**
 * The browser compiles what is run for the first time, and again what is hot: most of it is common to all
 * graphs.
 * @param {Trial[]} trials forward, and then the whole step of training, where there is one
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
 * `run` puts samples through a graph, `close` gives back what that takes. @param {any} model
 * @param {string} name
 */
function opened(model, name, /** @type {any} */ x, /** @type {Int32Array} */ y) {
  const [what, tunable] = name.split(".");
  /** @type {any} */
  let held = null;
  const close = async () => {
    held = null;
    await model.unload();
  };
  if (what === "forward") return { run: () => model.logits(x), close };
  if (what === "loss") return { run: async () => (held ??= await model.probe(tunable)).loss(x, y), close };
  const run = async () => {
    held ??= await trainerOf(model, tunable);
    await held.trainer.lossAndGrads(x, y);
    held.steps.step(held.trainer.params.vector, held.trainer.grads.vector);
  };
  return { run, close };
}

/** With the optimiser's step. @param {any} model @param {string} tunable */
async function trainerOf(model, tunable) {
  const trainer = await model.trainer(tunable);
  return { trainer, steps: new SgdSteps(STEP, trainer.params.vector.length) };
}

/** Steps of the linear classifier on few samples, which are hardly any arithmetic. @param {any} model */
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
