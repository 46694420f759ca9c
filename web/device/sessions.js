/** Sessions of ONNX Runtime, each made from a checked graph and its weights (models/engines/onnx_session.py). */

import { BundleError, EngineError } from "./errors.js";
import { outside } from "./outside.js";
import { engineErrors } from "./runtime.js";

/**
 * Callbacks of an engine: `willLoad` before a session of a graph is made, `ran` after each run of a batch.
 * @typedef {{willLoad?: (name: string, graph: any) => void,
 *   ran?: (name: string, graph: any, samples: number, seconds: number) => void}} EngineWatch
 * @typedef {import("./flat.js").Tensors} Tensors
 */

/** A session and the graph that it was made from. */
export class LoadedGraph {
  #session;
  #watch;

  /** @param {string} name @param {any} graph of the manifest @param {any} session @param {EngineWatch} watch */
  constructor(name, graph, session, watch) {
    this.name = name;
    this.graph = graph;
    this.#session = session;
    this.#watch = watch;
  }

  /**
   * The outputs by name, all or those wanted. Raises EngineError.
   * @param {Record<string, any>} feeds the library's tensors
   * @param {number} samples
   * @param {string[]} [wanted]
   * @returns {Promise<Record<string, any>>}
   */
  async run(feeds, samples, names) {
    const began = performance.now();
    const what = `graph ${this.name} on ${samples} samples`;
    const outputs = await engineErrors(what, () =>
      names ? this.#session.run(feeds, names) : this.#session.run(feeds),
    );
    this.#watch.ran?.(this.name, this.graph, samples, (performance.now() - began) / 1000);
    return outputs;
  }

  /** Frees its memory. @returns {Promise<void>} */
  async release() {
    await this.#session.release();
  }
}

/** The open sessions of one model. */
export class Sessions {
  /** @type {Map<string, Promise<LoadedGraph>>} */
  #open = new Map();

  /**
   * @param {import("./bundle.js").Bundle} bundle @param {import("./runtime.js").Runtime} runtime
   * @param {EngineWatch} watch
   */
  constructor(bundle, runtime, watch) {
    this.bundle = bundle;
    this.runtime = runtime;
    this.watch = watch;
  }

  /**
   * The session of a graph at these weights. Raises BundleError, EngineError, and what the watch throws.
   * @param {string} name @param {Tensors} weights @returns {Promise<LoadedGraph>}
   */
  get(name, weights) {
    const open = this.#open.get(name);
    if (open) return open;
    const session = this.#make(name, weights);
    this.#open.set(name, session);
    session.catch(() => this.#open.delete(name));
    return session;
  }

  /** @param {string} name @param {Tensors} weights */
  async #make(name, weights) {
    const graph = this.bundle.entry(name);
    if (graph.derived.length) {
      throw new EngineError(
        `graph ${name} takes weights in lower precision, which are not made in a browser`,
      );
    }
    const { model, names } = this.#examined(name);
    const stray = names.find((tensorName) => !graph.frozen.includes(tensorName));
    if (stray !== undefined)
      throw new BundleError(`graph ${name} asks for ${stray}, which the manifest does not give it`);
    this.watch.willLoad?.(name, graph);
    const files = new Map(names.map((tensorName) => [tensorName, bytesOf(/** @type {any} */ (weights.get(tensorName)))]));
    const session = await this.runtime.session(model, files, `graph ${name}`);
    return new LoadedGraph(name, graph, session, this.watch);
  }

  /** The graph, checked. Raises BundleError for anything that is not allowed. @param {string} name */
  #examined(name) {
    try {
      return outside(this.bundle.graph(name));
    } catch (error) {
      if (error instanceof BundleError) throw new BundleError(`graph ${name}: ${error.message}`);
      throw error;
    }
  }

  /** Closes the sessions that hold any of these parameters. @param {Set<string>} changed */
  async drop(changed) {
    for (const name of [...this.#open.keys()]) {
      const frozen = this.bundle.entry(name).frozen;
      if (frozen.some((/** @type {string} */ tensorName) => changed.has(tensorName))) await this.#release(name);
    }
  }

  /** Closes all sessions; the next use makes them again. */
  async clear() {
    for (const name of [...this.#open.keys()]) await this.#release(name);
  }

  /** @param {string} name */
  async #release(name) {
    const loaded = await this.#open.get(name);
    this.#open.delete(name);
    await loaded?.release();
  }
}

/** @param {import("./flat.js").Tensor} tensor */
function bytesOf({ data }) {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}
