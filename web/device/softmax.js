/** Log-softmax and entropy of rows. Part of models/training/heads.py. */

/**
 * The log-softmax of each row in float32; logits (n, classes).
 * @param {Float32Array} logits
 * @param {number} classes
 * @returns {Float32Array}
 */
export function logSoftmax(logits, classes) {
  const logs = new Float32Array(logits.length);
  for (let start = 0; start < logits.length; start += classes) {
    let most = -Infinity;
    for (let i = start; i < start + classes; i += 1) most = Math.max(most, logits[i]);
    let sum = 0;
    for (let i = start; i < start + classes; i += 1) {
      logs[i] = logits[i] - most;
      sum += Math.exp(logs[i]);
    }
    const log = Math.fround(Math.log(sum));
    for (let i = start; i < start + classes; i += 1) logs[i] -= log;
  }
  return logs;
}

/**
 * Entropy of each row's softmax in nats; logits (n, classes), result (n,).
 * @param {Float32Array} logits
 * @param {number} classes
 */
export function entropy(logits, classes) {
  const logs = logSoftmax(logits, classes);
  const entropies = new Float32Array(logs.length / classes);
  for (let row = 0; row < entropies.length; row += 1) {
    let sum = 0;
    for (let i = row * classes; i < (row + 1) * classes; i += 1) sum += Math.exp(logs[i]) * logs[i];
    entropies[row] = -sum;
  }
  return entropies;
}
