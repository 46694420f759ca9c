/**
 * Changes gradients before a step: adds a proximal term, and clips their norm (strategies/terms/proximal.py and
 * models/training/optimizer.py).
 */

import { TensorError } from "./errors.js";
import { shapeText } from "./flat.js";

/** @typedef {import("./flat.js").Flat} Flat */

/**
 * A proximal term: weight / 2 * sum over the anchor's tensors of ||w - anchor||^2. FedProx (Li et al. 2020, equation
 * 2) has it on every trained tensor, FSCProx with twice the weight on the classifier alone.
 * @typedef {{weight: number, anchor: import("./flat.js").Tensors}} Proximal
 */

/**
 * Raises TensorError for an anchor that is not among the parameters.
 * @param {Proximal} term
 * @param {Flat} params
 */
export function checkAnchor({ anchor }, params) {
  for (const [name, { dtype, shape }] of anchor) {
    const view = params.views.get(name);
    if (!view)
      throw new TensorError(`proximal anchor ${name} is not among the ${params.views.size} trained tensors`);
    if (dtype !== "float32" || shapeText(shape) !== shapeText(view.shape)) {
      const expected = `float32 ${shapeText(view.shape)}`;
      throw new TensorError(`proximal anchor ${name} is ${dtype} ${shapeText(shape)}, expected ${expected}`);
    }
  }
}

/**
 * Adds the term's gradient: grads += weight * (params - anchor) in float32.
 * @param {Proximal} term
 * @param {Flat} params
 * @param {Flat} grads
 */
export function pull({ weight, anchor }, params, grads) {
  const scale = Math.fround(weight);
  for (const [name, { data: towards }] of anchor) {
    const w = /** @type {any} */ (params.views.get(name)).data;
    const g = /** @type {any} */ (grads.views.get(name)).data;
    for (let i = 0; i < g.length; i += 1) g[i] += Math.fround(Math.fround(w[i] - towards[i]) * scale);
  }
}

/**
 * Scales `grads` in place to a norm of at most `maxNorm`, as torch.nn.utils.clip_grad_norm_ does.
 * @param {Float32Array} grads @param {number} maxNorm
 */
export function clip(grads, maxNorm) {
  let square = 0;
  for (const value of grads) square += value * value;
  const factor = maxNorm / (Math.sqrt(square) + 1e-6);
  if (factor >= 1) return; // a norm that is NaN makes every gradient NaN, as in torch
  const scale = Math.fround(factor);
  for (let i = 0; i < grads.length; i += 1) grads[i] *= scale;
}
