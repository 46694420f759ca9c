/** A session whose trainable inputs are slices of one vector; the next run sees a change in place. */

import { EngineError } from "./errors.js";

/** @typedef {import("./engine.js").DeviceModel} DeviceModel */

export class BoundSession {
  /**
   * @param {DeviceModel} model @param {import("./sessions.js").LoadedGraph} loaded
   * @param {import("./flat.js").Flat} params this session's own parameters
   */
  constructor(model, loaded, params) {
    this.model = model;
    this.loaded = loaded;
    this.params = params;
    this.fed = this.tensors(params);
  }

  /** Tensors of the library that share the memory of a flat vector. @param {import("./flat.js").Flat} flat */
  tensors(flat) {
    const { Tensor } = this.model.runtime.ort;
    const entries = [...flat.views].map(([name, { shape, data }]) => [name, new Tensor("float32", data, shape)]);
    return Object.fromEntries(entries);
  }

  /**
   * The runs of these samples: where each begins and ends, and its inputs. Raises EngineError.
   * @param {import("./engine.js").Inputs} x @param {Int32Array} y
   * @returns {Generator<{start: number, end: number, feeds: Record<string, any>}>}
   */
  *runs(x, y) {
    const samples = this.model.count(x);
    if (y.length !== samples || !samples)
      throw new EngineError(`y is (${y.length},), expected (${samples},), at least one`);
    const rows = this.model.rows(this.loaded.graph);
    for (let start = 0; start < samples; start += rows) {
      const end = Math.min(start + rows, samples);
      const batch = { x: this.model.inputs(x, start, end), y: this.model.labels(y, start, end) };
      yield { start, end, feeds: { ...this.fed, ...batch } };
    }
  }
}
