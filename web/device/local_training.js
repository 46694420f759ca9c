/**
 * Local training: mini-batch epochs on a tunable set, for all kinds that train a device's model
 * (strategies/training/local_training.py).
 *
 * @typedef {import("./kinds/kind.js").Run} Run
 * @typedef {import("./kinds/kind.js").LocalData} LocalData
 *
 * `epochs` epochs over `indices`, reshuffled in each, in batches of `batch` samples. `clipNorm`: largest norm of a
 * step's whole gradient, proximal terms included; 0: no limit. `least`: the fewest epochs that may be sent. If 1 or
 * more, and the clock shows that not all `epochs` fit before the deadline, training ends after the last whole epoch
 * that does; 0: all epochs or none.
 * @typedef {{sgd: import("./optimizer.js").Sgd, epochs: number, batch: number, indices: Int32Array, tunable:
 *   string, objective?: string, extras?: (batch: Int32Array) => import("./trainer.js").Extras, proximal?:
 *   import("./gradients.js").Proximal[], clipNorm?: number, least?: number}} TrainingPlan
 *
 * The tunable set and its normalisation statistics after training, the mean loss over the last whole epoch, and how
 * many epochs were done.
 * @typedef {{tensors: import("./flat.js").Tensors, loss: number, epochs: number}} TrainingResult
 */

import { OutOfTime } from "./errors.js";
import { checkAnchor, clip, pull } from "./gradients.js";
import { gathered, pace } from "./kinds/kind.js";
import { rngOf } from "./randomness.js";

/**
 * Train from the weights that the model holds. The returned tensors are the trainer's own buffers. Raises OutOfTime by
 * the device's own clock, and TensorError for a proximal term that does not fit.
 * @param {import("./engine.js").DeviceModel} model
 * @param {LocalData} data
 * @param {TrainingPlan} plan
 * @param {Run} run
 * @returns {Promise<TrainingResult>}
 */
export async function train(model, data, plan, run) {
  const trainer = await model.trainer(plan.tunable, plan.objective);
  const { params, grads, statistics } = trainer;
  const { proximal = [], clipNorm = 0, extras } = plan;
  for (const term of proximal) checkAnchor(term, params);
  const steps = plan.sgd.start(params.vector);
  const budget = new EpochBudget(plan, run, [params.vector, statistics.vector]);
  const trained = new Map([...params.views, ...statistics.views]);
  const rng = await rngOf(run);
  let loss = 0;
  for (let epoch = 0; epoch < plan.epochs; epoch += 1) {
    let [total, samples] = [0, 0];
    for (const { batch, done } of batches(plan, rng)) {
      const { x, y } = gathered(data, batch);
      total += (await trainer.lossAndGrads(x, y, extras?.(batch))) * batch.length;
      samples += batch.length;
      for (const term of proximal) pull(term, params, grads);
      if (clipNorm) clip(grads.vector, clipNorm);
      steps.step(params.vector, grads.vector);
      if ((await budget.reached(epoch + done)) && done < 1) {
        budget.restore();
        return { tensors: trained, loss, epochs: epoch };
      }
    }
    loss = total / Math.max(samples, 1);
    if (budget.epochs === epoch + 1) break;
    budget.keep(epoch + 1);
  }
  return { tensors: trained, loss, epochs: budget.epochs };
}

/**
 * How many epochs there is time for; keeps the parameters of the last whole epoch that may be sent.
 */
class EpochBudget {
  #planned;
  #least;
  #run;
  #began;
  #vectors;
  /** @type {Float32Array[] | null} */
  #copies = null;

  /** @param {TrainingPlan} plan @param {Run} run @param {Float32Array[]} held */
  constructor({ epochs, least = 0 }, run, vectors) {
    this.epochs = epochs;
    this.#planned = epochs;
    this.#least = least > 0 && least < epochs ? least : epochs;
    this.#run = run;
    this.#began = run.clock();
    this.#vectors = vectors;
  }

  /**
   * Whether training ends here, `done` epochs after its start. Raises OutOfTime if too few are done.
   * @param {number} done
   */
  async reached(done) {
    try {
      await this.#pace(done);
    } catch (error) {
      if (!(error instanceof OutOfTime) || this.epochs === this.#least) throw error;
      this.epochs = Math.max(this.#least, Math.trunc(done));
      if (done < this.epochs) await this.#pace(done);
    }
    return done >= this.epochs;
  }

  /** @param {number} done */
  #pace(done) {
    return pace(this.#run, { began: this.#began, done: done / this.epochs, of: this.epochs / this.#planned });
  }

  /** Copy the parameters after `done` whole epochs, if they could be the last. @param {number} done */
  keep(done) {
    if (this.#least <= done && done < this.epochs) this.#copies = this.#vectors.map((vector) => vector.slice());
  }

  /** Put the kept parameters back. */
  restore() {
    this.#copies?.forEach((copy, i) => this.#vectors[i].set(copy));
  }
}

/**
 * The batches of one epoch, each with the share of the epoch that is done after it.
 * @param {Pick<TrainingPlan, "indices" | "batch">} plan @param {import("./randomness.js").Generator} rng
 */
function* batches({ indices, batch: size }, rng) {
  const order = rng.permutation(indices);
  for (let start = 0; start < order.length; start += size) {
    const batch = order.subarray(start, start + size);
    yield { batch, done: (start + batch.length) / order.length };
  }
}

/**
 * The batches of all epochs, and how many come before the last epoch.
 * @param {TrainingPlan} plan @param {Run} run @returns {Promise<{batches: Int32Array[], before: number}>}
 */
export async function planBatches(plan, run) {
  const rng = await rngOf(run);
  const epochs = Array.from({ length: plan.epochs }, () => [...batches(plan, rng)].map(({ batch }) => batch));
  const every = epochs.flat();
  return { batches: every, before: every.length - epochs[epochs.length - 1].length };
}
