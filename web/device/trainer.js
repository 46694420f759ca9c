/** Back-propagation; the caller runs the optimiser, on two flat vectors (models/available_engines/onnx_engine.py). */

import { BoundSession } from "./bound_session.js";
import { EngineError } from "./errors.js";
import { Flat, shapeText, sizeOf } from "./flat.js";

/** @typedef {import("./engine.js").DeviceModel} DeviceModel */
/**
 * @typedef {Map<string, {shape: number[], data: Float32Array}>} Extras the objective's inputs beside x and y
 */

/**
 * Gradients of a tunable set. More samples than one run takes are cut into micro-batches, whose gradients are summed;
 * batch statistics are those of a micro-batch.
 */
export class Gradients extends BoundSession {
  #sum = new Float32Array(0);

  /**
   * @param {DeviceModel} model @param {import("./sessions.js").LoadedGraph} loaded
   * @param {import("./flat.js").Flat} params
   */
  constructor(model, loaded, params) {
    super(model, loaded, params);
    /** Gradient of the mean loss of the last call, laid out as `params`; the next call overwrites it. */
    this.grads = new Flat(params.specs);
    const moved = loaded.graph.statistics;
    /** Running statistics that training changes, if any; each call updates them. */
    this.statistics = new Flat(model.manifest.stored().filter((spec) => moved.includes(spec.name)));
    this.statistics.load(model.weights);
    this.fed = { ...this.fed, ...this.tensors(this.statistics) };
  }

  /**
   * The mean loss of the objective; leaves its gradient in `grads`. Raises EngineError.
   * @param {import("./engine.js").Inputs} x @param {Int32Array} y @param {Extras} [extras]
   * @returns {Promise<number>}
   */
  async lossAndGrads(x, y, extras = new Map()) {
    this.#checkExtras(extras, y.length);
    const whole = y.length <= this.model.rows(this.loaded.graph);
    const { vector } = this.grads;
    if (!whole && !this.#sum.length) this.#sum = new Float32Array(vector.length);
    this.#sum.fill(0);
    let total = 0;
    for (const { start, end, feeds } of this.runs(x, y)) {
      const outputs = await this.loaded.run({ ...feeds, ...this.#rows(extras, start, end) }, end - start);
      const share = (end - start) / y.length;
      total += whole ? outputs.loss.data[0] : share * outputs.loss.data[0];
      this.#take(outputs);
      if (!whole) addScaled(this.#sum, vector, share);
      await this.model.rest();
    }
    if (!whole) vector.set(this.#sum);
    return total;
  }

  /** @param {Record<string, any>} given the outputs of one run */
  #take(outputs) {
    for (const [name, view] of this.grads.views) view.data.set(outputs[`grad.${name}`].data);
    for (const [name, view] of this.statistics.views) view.data.set(outputs[`next.${name}`].data);
  }

  /** @param {Extras} extras @param {number} start @param {number} end */
  #rows(extras, start, end) {
    const { Tensor } = this.model.runtime.ort;
    /** @type {Record<string, any>} */
    const fed = {};
    for (const { name, per_sample: perSample } of this.loaded.graph.extras) {
      const { shape, data } = /** @type {any} */ (extras.get(name));
      const width = perSample ? sizeOf(shape.slice(1)) : 0;
      const part = perSample ? data.subarray(start * width, end * width) : data;
      fed[name] = new Tensor("float32", part, perSample ? [end - start, ...shape.slice(1)] : shape);
    }
    return fed;
  }

  /** @param {Extras} extras @param {number} samples */
  #checkExtras(extras, samples) {
    const specs = this.loaded.graph.extras;
    const takes = specs
      .map((/** @type {any} */ spec) => spec.name)
      .sort()
      .join(", ");
    const names = [...extras.keys()].sort().join(", ");
    if (names !== takes)
      throw new EngineError(`extra inputs are ${names || "none"}, expected ${takes || "none"}`);
    for (const { name, shape, per_sample: perSample } of specs) {
      const expected = shapeText(perSample ? [samples, ...shape] : shape);
      const actual = shapeText(/** @type {any} */ (extras.get(name)).shape);
      if (actual !== expected) throw new EngineError(`extra input ${name} is ${actual}, expected ${expected}`);
    }
  }
}

/**
 * sum += share * vector; product and sum are rounded to float32.
 * @param {Float32Array} sum
 * @param {Float32Array} vector
 * @param {number} share
 */
function addScaled(sum, vector, share) {
  const scale = Math.fround(share);
  for (let i = 0; i < sum.length; i += 1) sum[i] += Math.fround(vector[i] * scale);
}
