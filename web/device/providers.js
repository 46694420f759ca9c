/** Chooses how ONNX Runtime runs a bundle: on WebGPU if it gives the results of WASM and is faster, else on WASM. */

import { DeviceModel } from "./engine.js";
import { ModelError } from "./errors.js";
import { Runtime, wasmRuntime, webgpuRuntime } from "./runtime.js";

/** @typedef {import("./bundle.js").Bundle} Bundle */

/** The largest difference of results, over the largest of them: rounding and the order of sums differ. */
const AGREEMENT = 1e-3;
const RUNS = 3;
const SETS = ["all", "mid", "up", "head"];

/**
 * The runtime for this bundle. If there is WebGPU, both are tried on the same samples. Raises EngineError if the
 * library cannot be loaded at all.
 * @param {Bundle} bundle
 * @param {{threads?: number, gpu?: boolean}} [wish] threads: see wasmRuntime; gpu: whether to try WebGPU
 * @returns {Promise<Runtime>}
 */
export async function runtimeFor(bundle, { threads = 0, gpu = true } = {}) {
  const wasm = await wasmRuntime({ threads });
  if (!gpu) return wasm;
  const other = await webgpuRuntime();
  if (typeof other === "string") return because(wasm, other);
  const tunable = SETS.find((name) => Object.hasOwn(bundle.manifest.graphs, `train.${name}`));
  try {
    const expected = await tried(bundle, wasm, tunable);
    const trial = await tried(bundle, other, tunable);
    return judged({ runtime: wasm, ...expected }, { runtime: other, ...trial });
  } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    return because(wasm, `WebGPU cannot run it: ${error.message}`);
  }
}

/**
 * @typedef {{results: Float32Array[], seconds: number}} Tried results: of the first run; seconds: of the fastest
 */

/**
 * @param {Tried & {runtime: Runtime}} wasm
 * @param {Tried & {runtime: Runtime}} gpu
 */
export function judged(wasm, gpu) {
  const apart = Math.max(...wasm.results.map((values, i) => distance(values, gpu.results[i])));
  const times = `${ms(gpu.seconds)} a step against ${ms(wasm.seconds)}`;
  if (!(apart <= AGREEMENT)) {
    return because(wasm.runtime, `WebGPU differs by ${apart.toPrecision(2)} of the largest value`);
  }
  if (gpu.seconds >= wasm.seconds) return because(wasm.runtime, `WebGPU agrees but is slower: ${times}`);
  return because(gpu.runtime, `agrees with WASM to ${apart.toPrecision(2)}: ${times}`);
}

/**
 * Times a runtime, and returns its logits and the gradients of a set for some samples.
 * @param {Bundle} bundle
 * @param {Runtime} runtime
 * @param {string | undefined} tunable undefined if the bundle has no training graph
 * @returns {Promise<Tried>}
 */
async function tried(bundle, runtime, tunable) {
  const model = new DeviceModel(bundle, runtime);
  const { manifest } = bundle;
  const graph = manifest.graphs[tunable ? `train.${tunable}` : "forward"];
  const { x, y } = drawn(manifest, model.rows(graph));
  try {
    const results = [await model.logits(x)];
    const trainer = tunable ? await model.trainer(tunable) : null;
    const run = () => (trainer ? trainer.lossAndGrads(x, y) : model.logits(x));
    await run();
    if (trainer) results.push(trainer.grads.vector.slice());
    let seconds = Infinity;
    for (let i = 0; i < RUNS; i += 1) {
      const began = performance.now();
      await run();
      seconds = Math.min(seconds, (performance.now() - began) / 1000);
    }
    return { results, seconds };
  } finally {
    await model.unload();
  }
}

/**
 * Samples for a bundle, always the same: any numbers of about the right size, or any ids; labels of any class.
 * @param {import("./manifest.js").Manifest} manifest
 * @param {number} samples
 */
export function drawn({ input, labels }, samples) {
  const size = input.shape.reduce(
    (/** @type {number} */ all, /** @type {number} */ length) => all * length,
    samples,
  );
  const y = Int32Array.from({ length: samples }, (_, i) => i % labels.length);
  if (input.vocabulary !== null) {
    return { x: Int32Array.from({ length: size }, (_, i) => (i * 7919) % input.vocabulary), y };
  }
  return { x: Float32Array.from({ length: size }, (_, i) => ((i * 7919) % 4001) / 1000 - 2), y };
}

/** The largest difference over the largest value; NaN if any value is NaN. */
function distance(/** @type {Float32Array} */ values, /** @type {Float32Array} */ others) {
  let [most, apart] = [0, 0];
  for (let i = 0; i < values.length; i += 1) {
    most = Math.max(most, Math.abs(values[i]));
    apart = Math.max(apart, Math.abs(values[i] - others[i])); // once NaN, it stays NaN
  }
  return apart / Math.max(most, Number.MIN_VALUE);
}

/** @param {number} seconds */
const ms = (seconds) => `${(1000 * seconds).toPrecision(3)} ms`;

/**
 * The runtime, with another reason added to `why`.
 * @param {Runtime} runtime
 * @param {string} why
 */
function because(runtime, why) {
  runtime.why = `${runtime.why}; ${why}`;
  return runtime;
}
