/**
 * The loss as a function of parameters that are changed in place, for zeroth-order work
 * (models/engines/onnx_probe.py).
 */

import { Bound } from "./bound.js";

export class LossProbe extends Bound {
  /**
   * Mean cross-entropy in nats: of each sample in float32, summed in float64. Raises EngineError.
   * @param {import("./engine.js").Inputs} x @param {Int32Array} y @returns {Promise<number>}
   */
  async loss(x, y) {
    let sum = 0;
    for (const { start, end, feeds } of this.runs(x, y)) {
      const { losses } = await this.loaded.run(feeds, end - start, ["losses"]);
      for (const loss of losses.data) sum += loss;
      await this.model.rest();
    }
    return sum / y.length;
  }
}
