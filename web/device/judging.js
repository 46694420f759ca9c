/** Judges a model on labelled samples. */

import { logSoftmax } from "./softmax.js";

/** The most samples that are used, because it is done between rounds. */
export const MOST = 500;

/**
 * How many of `count` samples the model classifies right, and the mean cross-entropy in nats.
 * @param {import("./engine.js").DeviceModel} model @param {any} data LocalData, not empty
 */
export async function judged(model, data) {
  const count = Math.min(MOST, data.y.length);
  const logits = await model.logits(data.x.subarray(0, count * (data.x.length / data.y.length)));
  const classes = model.manifest.labels.length;
  const logs = logSoftmax(logits, classes);
  let right = 0;
  let loss = 0;
  for (let i = 0; i < count; i += 1) {
    const row = logs.subarray(i * classes, (i + 1) * classes);
    right += row.indexOf(Math.max(...row)) === data.y[i] ? 1 : 0;
    loss -= row[data.y[i]];
  }
  return { right, count, loss: loss / count };
}
