/**
 * Runs a bundle's graphs, back-propagation included, on ONNX Runtime in the browser (models/available_engines/onnx_engine.py).
 *
 * Inputs are a typed array of n * prod(input.shape) prepared values: Float32Array, or Int32Array for token
 * ids. Frozen parameters are initialisers of a session; trainable ones are inputs of each run.
 */

import { yieldToTasks } from "./cooperative.js";
import { EngineError } from "./errors.js";
import { Flat, check, sizeOf } from "./flat.js";
import { checkIds } from "./manifest.js";
import { LossProbe } from "./probe.js";
import { Sessions } from "./sessions.js";
import { Gradients } from "./trainer.js";
import { BATCH, rowsOf } from "./workload.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {Float32Array | Int32Array} Inputs */

/** A bundle ready to run. Sessions are made when first needed, and kept until `unload`. */
export class DeviceModel {
  #sessions;
  #size;

  /**
   * Starts at the bundle's weights.
   * @param {import("./bundle.js").Bundle} bundle @param {import("./runtime.js").Runtime} runtime
   * @param {{batch?: number, watch?: import("./sessions.js").EngineWatch, runBytes?: number}} [settings]
   *   batch: most samples of a run; runBytes: most bytes of live activations of one run, about
   */
  constructor(bundle, runtime, { batch = BATCH, watch = {}, runBytes } = {}) {
    this.manifest = bundle.manifest;
    this.runtime = runtime;
    this.batch = batch;
    this.runBytes = runBytes;
    this.#sessions = new Sessions(bundle, runtime, watch);
    this.#size = sizeOf(bundle.manifest.input.shape);
    /** Called between runs of a graph during long work, which ends if it throws. */
    this.between = async () => {};
    /** Every tensor of the model; read-only. @type {Tensors} */
    this.weights = bundle.weights();
  }

  /**
   * Take new values of some or all tensors; the caller must not change them any more. Existing probes and trainers
   * keep their own. Raises TensorError for a tensor that does not fit.
   * @param {Tensors} tensors
   */
  async load(tensors) {
    check(
      tensors,
      this.manifest.stored().filter((spec) => tensors.has(spec.name)),
    );
    const changed = [...tensors].filter(([name, tensor]) => !same(tensor.data, this.weights.get(name)?.data));
    this.weights = new Map([...this.weights, ...changed]);
    await this.#sessions.drop(new Set(changed.map(([name]) => name)));
  }

  /** Frees the memory of everything that was made to run graphs; the next use makes it again. */
  async unload() {
    await this.#sessions.clear();
  }

  /** Between two runs: lets waiting tasks of this thread run. Raises what `between` raises. */
  async rest() {
    if (await yieldToTasks()) await this.between();
  }

  /** The most samples of one run. @param {any} graph of the manifest */
  rows(graph) {
    return rowsOf(graph, this.batch, this.runBytes);
  }

  /** Logits (n, classes). Raises EngineError. @param {Inputs} x @returns {Promise<Float32Array>} */
  logits(x) {
    return this.#run("forward", x, "logits", this.manifest.labels.length);
  }

  /**
   * Features (n, width), the input of the head. Raises EngineError.
   * @param {Inputs} x
   * @returns {Promise<Float32Array>}
   */
  features(x) {
    return this.#run("forward", x, "features", this.manifest.head.features);
  }

  /** The loss as a function of a tunable set, starting at `weights`. Raises BundleError, EngineError. */
  async probe(tunable = "all") {
    const loaded = await this.#sessions.get(`loss.${tunable}`, this.weights);
    return new LossProbe(this, loaded, this.#params(tunable));
  }

  /** The gradients of a tunable set, starting at `weights`. Raises BundleError, EngineError. */
  async trainer(tunable = "all", objective = "train") {
    const loaded = await this.#sessions.get(`${objective}.${tunable}`, this.weights);
    return new Gradients(this, loaded, this.#params(tunable));
  }

  /** @param {string} tunable */
  #params(tunable) {
    const params = new Flat(this.manifest.specs(tunable));
    params.load(this.weights);
    return params;
  }

  /**
   * One output of a graph, computed batch by batch.
   * @param {string} name
   * @param {Inputs} x
   * @param {string} output
   * @param {number} width of a row
   */
  async #run(name, x, output, width) {
    const samples = this.count(x);
    const result = new Float32Array(samples * width);
    const loaded = await this.#sessions.get(name, this.weights);
    const rows = this.rows(loaded.graph);
    for (let start = 0; start < samples; start += rows) {
      const end = Math.min(start + rows, samples);
      const outputs = await loaded.run({ x: this.inputs(x, start, end) }, end - start, [output]);
      const { data } = outputs[output];
      if (data.length !== (end - start) * width) {
        throw new EngineError(
          `graph ${name} gives ${data.length} values of ${output}, expected ${end - start} * ${width}`,
        );
      }
      result.set(data, start * width);
      await this.rest();
    }
    return result;
  }

  /**
   * The number of samples in `x`. Raises EngineError for other values than samples, TensorError for an unknown id.
   * @param {Inputs} x
   */
  count(x) {
    const { input, name } = this.manifest;
    if (x.length % this.#size)
      throw new EngineError(`x has ${x.length} values, ${name} takes ${this.#size} a sample`);
    const expected = input.dtype === "int64" ? Int32Array : Float32Array;
    if (!(x instanceof expected))
      throw new EngineError(`x is ${x.constructor.name}, ${name} takes ${expected.name}`);
    checkIds(input, x);
    return x.length / this.#size;
  }

  /**
   * Samples `start` to `end` as a tensor of the library.
   * @param {Inputs} x
   * @param {number} start
   * @param {number} end
   */
  inputs(x, start, end) {
    const { Tensor } = this.runtime.ort;
    const { shape, dtype } = this.manifest.input;
    const part = x.subarray(start * this.#size, end * this.#size);
    const data = dtype === "int64" ? BigInt64Array.from(part, BigInt) : part;
    return new Tensor(dtype, data, [end - start, ...shape]);
  }

  /**
   * Labels `start` to `end` as a tensor of the library. Raises EngineError for unknown labels.
   * @param {Int32Array} y
   * @param {number} start
   * @param {number} end
   */
  labels(y, start, end) {
    const last = this.manifest.labels.length - 1;
    const part = y.subarray(start, end);
    const wrong = part.find((label) => label < 0 || label > last);
    if (wrong !== undefined)
      throw new EngineError(`y holds label ${wrong}, ${this.manifest.name} has labels 0 to ${last}`);
    return new this.runtime.ort.Tensor("int64", BigInt64Array.from(part, BigInt), [part.length]);
  }
}

/** @param {ArrayLike<any>} one @param {ArrayLike<any> | undefined} other */
function same(left, other) {
  if (left === other) return true;
  if (!other || left.length !== other.length) return false;
  for (let i = 0; i < left.length; i += 1) if (left[i] !== other[i]) return false;
  return true;
}
