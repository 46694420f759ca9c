// Prepares samples for training and judging: each sample is prepared only once (models/data/local_data.py).

import { prepare, sizeOf } from "./preparing.js";

/**
 * @typedef {Float32Array | Int32Array} Values Int32Array: token ids
 * @typedef {{x: Values, y: Int32Array, shape: number[]}} LocalData x (n, *shape), prepared
 * @typedef {{key: string, label: string, raw: Uint8Array | Values, held: boolean[],
 *   prepared: Values[] | null}} Group samples of one label that were added together, raw (n, *shape). `held`:
 *   which of them are held out. `prepared`: the training samples, then the held-out ones; null until first used
 * @typedef {{spec: import("./preparing.js").InputSpec, labels: string[]}} Task
 */

/**
 * The training samples and the held-out samples, each in the order of the groups. Afterwards `prepared` of each group
 * holds views of these. @param {Group[]} groups @param {Task} task @returns {LocalData[]}
 */
export function together(groups, task) {
  const parts = groups.map((group) => (group.prepared ??= prepared(group, task.spec)));
  return [0, 1].map((which) => joined(groups, parts, { ...task, which }));
}

/** The type of prepared samples. @param {Task["spec"]} spec */
const valuesOf = ({ dtype }) => (dtype === "int64" ? Int32Array : Float32Array);

/** @param {Group} group @param {Task["spec"]} spec @returns {Values[]} */
function prepared({ raw, held: isHeld }, spec) {
  const size = sizeOf(spec.shape);
  return [false, true].map((isHoldout) => {
    const places = [...isHeld.keys()].filter((place) => isHeld[place] === isHoldout);
    const rows = new (valuesOf(spec))(places.length * size);
    places.forEach((from, to) => rows.set(raw.subarray(from * size, (from + 1) * size), to * size));
    return prepare(spec, rows);
  });
}

function joined(groups, parts, { spec, labels, which }) {
  const size = sizeOf(spec.shape);
  const x = new (valuesOf(spec))(parts.reduce((sum, part) => sum + part[which].length, 0));
  const y = new Int32Array(x.length / size);
  let begin = 0;
  for (const [i, part] of parts.entries()) {
    const end = begin + part[which].length;
    x.set(part[which], begin);
    y.fill(labels.indexOf(groups[i].label), begin / size, end / size);
    part[which] = x.subarray(begin, end);
    begin = end;
  }
  return { x, y, shape: spec.shape };
}
