/** The last layer alone, trained on features computed once. Part of models/training/heads.py. */

import { Flat, sizeOf } from "./flat.js";
import { logSoftmax } from "./softmax.js";

/** logits = features @ weight.T + bias; products are summed in float64 and rounded to float32 once. */
export class SoftmaxHead {
  #weight;
  #bias;

  /**
   * Copies the head's parameters out of `weights`. Raises TensorError if they do not fit.
   * @param {import("./manifest.js").Manifest} manifest @param {import("./flat.js").Tensors} weights
   */
  constructor({ head, labels }, weights) {
    this.classes = labels.length;
    this.width = head.features;
    const specs = [{ name: head.weight, shape: [this.classes, this.width], dtype: "float32" }];
    if (head.bias !== null) specs.push({ name: head.bias, shape: [this.classes], dtype: "float32" });
    this.params = new Flat(specs);
    this.grads = new Flat(specs);
    this.params.load(weights);
    this.#weight = head.weight;
    this.#bias = head.bias;
  }

  /** @param {Flat} flat @returns {{weight: Float32Array, bias: Float32Array | null}} */
  #parts(flat) {
    const weight = flat.views.get(this.#weight)?.data;
    return { weight, bias: this.#bias === null ? null : flat.views.get(this.#bias)?.data };
  }

  /**
   * @param {Float32Array} features (n, width)
   * @param {Int32Array} batch rows of it
   * @returns {Float32Array} (len(batch), classes)
   */
  logits(features, batch) {
    const { weight, bias } = this.#parts(this.params);
    const logits = new Float32Array(batch.length * this.classes);
    for (let row = 0; row < batch.length; row += 1) {
      for (let label = 0; label < this.classes; label += 1) {
        let sum = 0;
        const [from, own] = [batch[row] * this.width, label * this.width];
        for (let i = 0; i < this.width; i += 1) sum += features[from + i] * weight[own + i];
        logits[row * this.classes + label] = bias ? Math.fround(sum) + bias[label] : sum;
      }
    }
    return logits;
  }

  /**
   * Mean cross-entropy in nats of these rows; leaves the gradients in `grads`.
   * @param {Float32Array} features (n, width)
   * @param {Int32Array} y (n,)
   * @param {Int32Array} batch rows of both
   * @returns {number}
   */
  lossAndGrads(features, y, batch) {
    const slope = logSoftmax(this.logits(features, batch), this.classes);
    let loss = 0;
    for (const [row, sample] of batch.entries()) loss -= slope[row * this.classes + y[sample]];
    const count = Math.fround(batch.length);
    for (let row = 0; row < batch.length; row += 1) {
      for (let label = 0; label < this.classes; label += 1) {
        const at = row * this.classes + label;
        const share = Math.fround(Math.exp(slope[at]));
        slope[at] = (label === y[batch[row]] ? Math.fround(share - 1) : share) / count;
      }
    }
    this.#sum(slope, features, batch);
    return loss / batch.length;
  }

  /**
   * One step for each batch of rows; returns the mean loss of all samples used.
   * @param {Float32Array} features (n, width)
   * @param {Int32Array} y (n,)
   * @param {Iterable<Int32Array> | AsyncIterable<Int32Array>} batches
   * @param {import("./optimizer.js").Sgd} sgd
   */
  async train(features, y, batches, sgd) {
    const steps = sgd.start(this.params.vector);
    let [total, samples] = [0, 0];
    for await (const batch of batches) {
      total += this.lossAndGrads(features, y, batch) * batch.length;
      samples += batch.length;
      steps.step(this.params.vector, this.grads.vector);
    }
    return total / samples;
  }

  /**
   * The gradients: slope.T @ features, and the sums of slope.
   * @param {Float32Array} slope
   * @param {Float32Array} features
   * @param {Int32Array} batch
   */
  #sum(slope, features, batch) {
    const { weight, bias } = this.#parts(this.grads);
    const total = new Float64Array(sizeOf([this.classes, this.width]));
    const sums = new Float64Array(this.classes);
    for (let row = 0; row < batch.length; row += 1) {
      for (let label = 0; label < this.classes; label += 1) {
        const own = slope[row * this.classes + label];
        sums[label] += own;
        const [from, to] = [batch[row] * this.width, label * this.width];
        for (let i = 0; i < this.width; i += 1) total[to + i] += own * features[from + i];
      }
    }
    weight.set(total);
    bias?.set(sums);
  }
}
