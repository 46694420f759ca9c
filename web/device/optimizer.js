/** SGD on one flat vector, in place and in float32: what torch's does, to rounding (models/training/optimizer.py). */

/** v = momentum * v + g + weightDecay * w;  w -= lr * v: torch's convention, without dampening. */
export class Sgd {
  /** @param {number} lr @param {number} [momentum] @param {number} [weightDecay] */
  constructor(lr, momentum = 0, weightDecay = 0) {
    this.lr = lr;
    this.momentum = momentum;
    this.weightDecay = weightDecay;
  }

  /**
   * A run over vectors as long as `params`, which is not kept.
   * @param {Float32Array} params
   * @returns {SgdSteps}
   */
  start(params) {
    return new SgdSteps(this, params.length);
  }
}

/** One run of it: its momenta, and nothing of the parameters. */
export class SgdSteps {
  /** @param {Sgd} sgd @param {number} length */
  constructor({ lr, momentum, weightDecay }, length) {
    this.lr = Math.fround(lr);
    this.momentum = Math.fround(momentum);
    this.decay = Math.fround(weightDecay);
    this.velocity = momentum ? new Float32Array(length) : null;
  }

  /**
   * One step: `params` is changed in place, `grads` is left as it is.
   * @param {Float32Array} params
   * @param {Float32Array} grads
   */
  step(params, grads) {
    const { lr, momentum, decay, velocity } = this;
    for (let i = 0; i < params.length; i += 1) {
      let slope = grads[i];
      if (decay) slope = Math.fround(Math.fround(params[i] * decay) + slope);
      if (velocity) {
        velocity[i] = Math.fround(velocity[i] * momentum) + slope;
        slope = velocity[i];
      }
      params[i] -= Math.fround(slope * lr);
    }
  }
}
