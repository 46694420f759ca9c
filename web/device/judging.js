/** How well a model does on labelled samples. */

/** Samples that are looked at, at most: it is done between rounds. */
const MOST = 500;

/**
 * How many of the samples that were looked at get the right answer, and the mean cross-entropy in nats.
 * @param {any} model see engine.js @param {any} data LocalData, not empty
 */
export async function judged(model, data) {
  const count = Math.min(MOST, data.y.length);
  const logits = await model.logits(data.x.subarray(0, count * (data.x.length / data.y.length)));
  const classes = model.manifest.labels.length;
  const each = shares(logits, classes);
  let right = 0;
  let loss = 0;
  for (let i = 0; i < count; i += 1) {
    const row = each.subarray(i * classes, (i + 1) * classes);
    right += row.indexOf(Math.max(...row)) === data.y[i] ? 1 : 0;
    loss -= Math.log(row[data.y[i]]);
  }
  return { right, count, loss: loss / count };
}

/** Softmax of each row. @param {Float32Array} logits (n, classes) @param {number} classes */
export function shares(logits, classes) {
  const made = Float64Array.from(logits);
  for (let start = 0; start < made.length; start += classes) {
    const row = made.subarray(start, start + classes);
    const most = Math.max(...row);
    for (let i = 0; i < classes; i += 1) row[i] = Math.exp(row[i] - most);
    const sum = row.reduce((total, one) => total + one, 0);
    for (let i = 0; i < classes; i += 1) row[i] /= sum;
  }
  return made;
}
