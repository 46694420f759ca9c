/**
 * A bundle on ONNX Runtime in the browser, back-propagation included (models/engines/onnx_engine.py).
 *
 * Inputs are a typed array of n * prod(input.shape) prepared values: Float32Array, or Int32Array for token
 * ids. Frozen parameters are initialisers of a session; trainable ones are inputs, fed in each run.
 */

import { breathe } from "./cooperative.js";
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
   * @param {{batch?: number, watch?: import("./sessions.js").Watch, runBytes?: number}} [settings]
   *   batch: most samples of a run; runBytes: of live activations of one run, about
   */
  constructor(bundle, runtime, { batch = BATCH, watch = {}, runBytes } = {}) {
    this.manifest = bundle.manifest;
    this.runtime = runtime;
    this.batch = batch;
    this.runBytes = runBytes;
    this.#sessions = new Sessions(bundle, runtime, watch);
    this.#size = sizeOf(bundle.manifest.input.shape);
    /** Asked between runs of a graph, where there was long work; what it throws ends that. */
    this.between = async () => {};
    /** Every tensor of the model; nobody writes to it. @type {Tensors} */
    this.weights = bundle.weights();
  }

  /**
   * New values for some or all tensors, which must not change any more; probes and trainers that are out keep
   * theirs. Raises TensorError for one that does not fit.
   * @param {Tensors} tensors
   */
  async load(tensors) {
    check(
      tensors,
      this.manifest.stored().filter((spec) => tensors.has(spec.name)),
    );
    const changed = [...tensors].filter(([name, one]) => !same(one.data, this.weights.get(name)?.data));
    this.weights = new Map([...this.weights, ...changed]);
    await this.#sessions.drop(new Set(changed.map(([name]) => name)));
  }

  /** Gives back the memory of everything made to run the graphs; the next use makes it again. */
  async unload() {
    await this.#sessions.clear();
  }

  /** Between two runs: what waits is let in. Raises what `between` does. */
  async rest() {
    if (await breathe()) await this.between();
  }

  /** Samples of one run. @param {any} graph of the manifest */
  rows(graph) {
    return rowsOf(graph, this.batch, this.runBytes);
  }

  /** (n, classes). Raises EngineError. @param {Inputs} x @returns {Promise<Float32Array>} */
  logits(x) {
    return this.#run("forward", x, "logits", this.manifest.labels.length);
  }

  /**
   * (n, width), what the head takes. Raises EngineError.
   * @param {Inputs} x
   * @returns {Promise<Float32Array>}
   */
  features(x) {
    return this.#run("forward", x, "features", this.manifest.head.features);
  }

  /** The loss with a tunable set free, starting at `weights`. Raises BundleError, EngineError. */
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
   * Batch by batch.
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
      const given = await loaded.run({ x: this.inputs(x, start, end) }, end - start, [output]);
      const { data } = given[output];
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
   * How many samples these are. Raises EngineError for what are none, TensorError for an unknown id.
   * @param {Inputs} x
   */
  count(x) {
    const { input, name } = this.manifest;
    if (x.length % this.#size)
      throw new EngineError(`x has ${x.length} values, ${name} takes ${this.#size} a sample`);
    const wanted = input.dtype === "int64" ? Int32Array : Float32Array;
    if (!(x instanceof wanted))
      throw new EngineError(`x is ${x.constructor.name}, ${name} takes ${wanted.name}`);
    checkIds(input, x);
    return x.length / this.#size;
  }

  /**
   * Samples `start` to `end` as the library's tensor.
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
   * Labels likewise. Raises EngineError for unknown ones.
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
function same(one, other) {
  if (one === other) return true;
  if (!other || one.length !== other.length) return false;
  for (let i = 0; i < one.length; i += 1) if (one[i] !== other[i]) return false;
  return true;
}
