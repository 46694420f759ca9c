/** The loss as a function of changing parameters, for zeroth-order training (models/engines/onnx_session.py). */

import { BoundSession } from "./bound_session.js";

export class LossProbe extends BoundSession {
  /**
   * Mean cross-entropy in nats: of each sample in float32, summed in float64 in the given order. Raises EngineError.
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
