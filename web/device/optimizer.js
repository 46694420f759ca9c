/** SGD on one flat vector, in place, as in torch up to rounding (models/training/optimizer.py). */

/** SGD by torch's convention, without dampening: v = momentum * v + g + weightDecay * w;  w -= lr * v. */
export class Sgd {
  /** @param {number} lr @param {number} [momentum] @param {number} [weightDecay] */
  constructor(lr, momentum = 0, weightDecay = 0) {
    this.lr = lr;
    this.momentum = momentum;
    this.weightDecay = weightDecay;
  }

  /**
   * Starts a run over vectors as long as `params`; does not keep `params`.
   * @param {Float32Array} params
   * @returns {SgdSteps}
   */
  start(params) {
    return new SgdSteps(this, params.length);
  }
}

/** A run of `Sgd`; holds its momenta, but not the parameters. */
export class SgdSteps {
  /** @param {Sgd} sgd @param {number} length */
  constructor({ lr, momentum, weightDecay }, length) {
    this.lr = Math.fround(lr);
    this.momentum = Math.fround(momentum);
    this.decay = Math.fround(weightDecay);
    this.velocity = momentum ? new Float32Array(length) : null;
  }

  /**
   * One step: changes `params` in place, leaves `grads` unchanged.
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
