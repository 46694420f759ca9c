/**
 * Perturbs weights along directions, and replays the steps of a step log (strategies/directions/replaying.py). Steps
 * are computed in float64, with one rounding to float32 for each weight and step, so that all devices get the same
 * bits.
 *
 * @typedef {import("./flat.js").Tensors} Tensors
 * @typedef {{seed: bigint, index: bigint, scale: number, generator: string}} ScaledDirection `scale` times direction
 *   `index`
 * @typedef {{round: number, generator: string, seed: bigint, tunable: string, lr: number, share: number,
 *   scalars: number[]}} Step one zeroth-order step, as in broker/wire/messages.py
 */

import { yieldToTasks } from "./cooperative.js";
import { BLOCK, checkGenerator, direction } from "./directions.js";
import { TensorError } from "./errors.js";
import { Flat } from "./flat.js";

/**
 * params <- base + scale * z in float32, always from the base, so that no perturbation is undone. Raises
 * UnknownGenerator.
 * @param {Flat} params
 * @param {Tensors} base has every tensor of `params`
 * @param {ScaledDirection} along
 */
export async function perturb(params, base, along) {
  const scale = Math.fround(along.scale);
  for (let begin = 0; begin < params.vector.length; begin += BLOCK) {
    const part = params.loadPart(base, begin, BLOCK);
    const z = direction(along, begin, part.length);
    for (let i = 0; i < part.length; i += 1) part[i] += Math.fround(z[i] * scale);
    await yieldToTasks();
  }
}

/**
 * The weights after these steps, as the aggregator takes them and every device that catches up. The tensors that moved
 * are views of a new buffer. Raises UnknownGenerator, BundleError for an unknown tunable set, and TensorError for an
 * invalid step.
 * @param {Tensors} weights
 * @param {Step[]} steps
 * @param {import("./manifest.js").Manifest} manifest
 * @returns {Promise<Tensors>}
 */
export async function replay(weights, steps, manifest) {
  const current = new Map(weights);
  for (let begin = 0; begin < steps.length;) {
    const { tunable } = steps[begin];
    let end = begin;
    while (end < steps.length && steps[end].tunable === tunable) end += 1;
    const moves = steps.slice(begin, end).map(alongStep);
    const flat = new Flat(manifest.specs(tunable));
    flat.load(current);
    await applyMoves(flat.vector, moves);
    for (const [name, view] of flat.views) current.set(name, view);
    begin = end;
  }
  return current;
}

/**
 * The scaled directions of a step. Raises UnknownGenerator, and TensorError for an invalid step.
 * @param {Step} step
 * @returns {ScaledDirection[]}
 */
export function alongStep(step) {
  const { seed, scalars, generator } = step;
  checkGenerator(generator);
  if (!scalars.length || seed < 0n || seed >= 1n << 64n) {
    throw new TensorError(`step of round ${step.round}: ${scalars.length} scalars, seed ${seed}`);
  }
  const coefficient = -((step.lr * step.share) / scalars.length);
  return scalars.map((scalar, p) => ({ seed, index: BigInt(p), scale: coefficient * scalar, generator }));
}

/**
 * Apply every move in turn, each rounded once: all moves to one block, then the next block.
 * @param {Float32Array} vector @param {ScaledDirection[][]} moves
 */
export async function applyMoves(vector, moves) {
  const moved = new Float64Array(Math.min(BLOCK, vector.length));
  for (let begin = 0; begin < vector.length; begin += BLOCK) {
    const part = vector.subarray(begin, begin + BLOCK);
    for (const move of moves) {
      moved.set(part);
      for (const along of move) add(moved, direction(along, begin, part.length), along.scale);
      for (let i = 0; i < part.length; i += 1) part[i] = moved[i];
      await yieldToTasks();
    }
  }
}

/**
 * moved += scale * z in float64.
 * @param {Float64Array} moved
 * @param {Float32Array} z
 * @param {number} scale
 */
function add(moved, z, scale) {
  for (let i = 0; i < z.length; i += 1) moved[i] += z[i] * scale;
}
