/**
 * What is applied along directions, as strategies/directions/replaying.py: in float64, one rounding to float32 a weight
 * and step, so that all who replay hold the same bits.
 *
 * @typedef {import("./flat.js").Tensors} Tensors
 * @typedef {{seed: bigint, index: bigint, scale: number, generator: string}} Along scale times that direction
 * @typedef {{round: number, generator: string, seed: bigint, tunable: string, lr: number, share: number,
 *   scalars: number[]}} Step as broker/wire/messages.py has it
 */

import { breathe } from "./cooperative.js";
import { BLOCK, checkGenerator, direction } from "./directions.js";
import { TensorError } from "./errors.js";
import { Flat } from "./flat.js";

/**
 * params <- base + scale * z in float32, straight from the base: nothing is ever undone. Raises
 * UnknownGenerator.
 * @param {Flat} params
 * @param {Tensors} base has every tensor of `params`
 * @param {Along} along
 */
export async function perturb(params, base, along) {
  const scale = Math.fround(along.scale);
  for (let begin = 0; begin < params.vector.length; begin += BLOCK) {
    const part = params.loadPart(base, begin, BLOCK);
    const z = direction(along, begin, part.length);
    for (let i = 0; i < part.length; i += 1) part[i] += Math.fround(z[i] * scale);
    await breathe();
  }
}

/**
 * The weights after these steps: what the aggregator does, and every device that catches up. The tensors that
 * moved are views of a new buffer. Raises UnknownGenerator, BundleError for an unknown tunable set,
 * TensorError for a step that is none.
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
    await take(flat.vector, moves);
    for (const [name, view] of flat.views) current.set(name, view);
    begin = end;
  }
  return current;
}

/**
 * What a step moves the weights along. Raises UnknownGenerator, TensorError.
 * @param {Step} step
 * @returns {Along[]}
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
 * Every move in turn, each rounded once: a block through all of them, then the next block.
 * @param {Float32Array} vector @param {Along[][]} moves
 */
export async function take(vector, moves) {
  const moved = new Float64Array(Math.min(BLOCK, vector.length));
  for (let begin = 0; begin < vector.length; begin += BLOCK) {
    const part = vector.subarray(begin, begin + BLOCK);
    for (const move of moves) {
      moved.set(part);
      for (const along of move) add(moved, direction(along, begin, part.length), along.scale);
      for (let i = 0; i < part.length; i += 1) part[i] = moved[i];
      await breathe();
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
