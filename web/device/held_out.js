/**
 * Held-out samples, which compare the closed-form head with the trained head (strategies/statistics/held_out.py).
 */

import { SoftmaxHead } from "./head.js";
import { everyOne, gathered } from "./kinds/kind.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./kinds/kind.js").LocalData} LocalData */

/** Prefix of the names of the closed-form head's tensors among those sent beside the base. */
const CLOSED_FORM = "closed-form/";

const GOLDEN = (Math.sqrt(5) - 1) / 2;

/**
 * The samples that the device holds out, and the rest. Every 1 / share-th is held out, but never all; the same in every
 * round. The first one depends on the device's name.
 * @param {LocalData} data @param {number} share @param {string} device @returns {[LocalData, LocalData]}
 */
export function splitHeldOut(data, share, device) {
  const first = (new TextEncoder().encode(device).reduce((sum, byte) => sum + byte, 0) * GOLDEN) % 1;
  const count = (/** @type {number} */ i) => Math.floor(i * share + first);
  const isHeld = (/** @type {number} */ i) => data.y.length > 1 && count(i + 1) > count(i);
  const every = everyOne(data.y.length);
  return [gathered(data, every.filter(isHeld)), gathered(data, every.filter((i) => !isHeld(i)))];
}

/**
 * The workload without held-out samples, exact to one sample if samples are sorted by class.
 * @param {import("./cost.js").Workload} workload @param {number} share
 */
export function rest(workload, share) {
  let end = 0;
  const classCounts = workload.classCounts.map((count) => {
    const before = Math.floor(end * share);
    end += count;
    return count - (Math.floor(end * share) - before);
  });
  return workload.with({ classCounts });
}

/**
 * Whether a closed-form head came beside the base, so that the served head may be another than the base's own.
 * @param {Tensors} aside
 */
export const hasHead = (aside) => [...aside.keys()].some((name) => name.startsWith(CLOSED_FORM));

/**
 * The counts of held-out samples: all, those that the closed-form head classifies right, and those that the base's own
 * head does; null if no closed-form head came beside the base. `model` holds the base. Raises TensorError for a head
 * that does not fit.
 * @param {import("./engine.js").DeviceModel} model @param {LocalData} held @param {Tensors | undefined} aside
 */
export async function countRight(model, holdout, aside) {
  const named = [...(aside ?? [])].filter(([name]) => name.startsWith(CLOSED_FORM));
  if (!holdout.y.length || !named.length) return null;
  const closed = new Map(named.map(([name, tensor]) => [name.slice(CLOSED_FORM.length), tensor]));
  const heads = [closed, model.weights].map((weights) => new SoftmaxHead(model.manifest, weights));
  const features = await model.features(holdout.x);
  return Int32Array.of(holdout.y.length, ...heads.map((head) => right(head, features, holdout.y)));
}

/** @param {SoftmaxHead} head @param {Float32Array} features @param {Int32Array} y */
function right(head, features, y) {
  const logits = head.logits(features, everyOne(y.length));
  const guess = (/** @type {number} */ row) => {
    const own = logits.subarray(row * head.classes, (row + 1) * head.classes);
    return own.indexOf(Math.max(...own));
  };
  return y.reduce((sum, label, row) => sum + Number(guess(row) === label), 0);
}
