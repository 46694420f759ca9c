/** Predicts the cost of an update before it runs. Pure functions (profiles/cost.py and profiles/device.py). */

import { MissingGraph } from "./errors.js";
import { whole } from "./rounding.js";

/** Bytes of an open session besides its graph, weights and activations. */
export const SESSION_BYTES = 12 * 2 ** 20;
/** Memory of an open graph in ONNX Runtime over its file size. */
export const GRAPH_FACTOR = 128;

/**
 * How fast a bundle's graphs run on the device; mappings are by graph name. `seconds` are measured, per sample; a
 * graph that was not measured is predicted from its FLOPs at `flopsPerS`. `opening`: seconds to open a graph before
 * its first run. `stepS`: seconds of one step of a linear classifier alone. `heldBytes`: measured memory of an open
 * graph with a full run in it. `runBytes`: limit on a run's memory beside the weights; 0 for no limit.
 */
export class Speed {
  /** @param {number} flopsPerS @param {Partial<Speed>} [more] */
  constructor(flopsPerS, more = {}) {
    this.flopsPerS = flopsPerS;
    /** @type {Map<string, number>} */
    this.seconds = more.seconds ?? new Map();
    this.source = more.source ?? "";
    /** @type {Map<string, number>} */
    this.opening = more.opening ?? new Map();
    this.stepS = more.stepS ?? 0;
    /** @type {Map<string, number>} */
    this.heldBytes = more.heldBytes ?? new Map();
    this.runBytes = more.runBytes ?? 0;
  }

  /** Seconds for one sample through `graph`, which takes `flops` operations. */
  of(/** @type {string} */ graph, /** @type {number} */ flops) {
    return this.seconds.get(graph) ?? flops / this.flopsPerS;
  }
}

/**
 * Work of one graph: `flops` per sample, and the memory of a run beside the weights, in bytes. A run of n samples
 * holds fixedBytes + n * bytesPerSample of activations. `rows`: most samples of one run. `fileBytes`: size of the
 * graph's file. `heldBytes`: measured memory of an open session with a run of `rows` samples; 0 if unknown.
 * `isWhole`: every run has `rows` samples, never fewer.
 */
export class GraphWork {
  /** @param {Partial<GraphWork>} given */
  constructor(figures) {
    this.flops = figures.flops ?? 0;
    this.fixedBytes = figures.fixedBytes ?? 0;
    this.bytesPerSample = figures.bytesPerSample ?? 0;
    this.rows = figures.rows ?? 32;
    this.fileBytes = figures.fileBytes ?? 0;
    this.heldBytes = figures.heldBytes ?? 0;
    this.isWhole = figures.isWhole ?? false;
  }

  /** The same graph with `rows` lowered, to 1 at least, so that a run's activations fit `runBytes`; 0: no limit. */
  within(/** @type {number} */ runBytes) {
    if (this.isWhole || !runBytes) return this;
    const fit = Math.floor((runBytes - this.fixedBytes) / Math.max(1, this.bytesPerSample));
    return new GraphWork({ ...this, rows: Math.max(1, Math.min(this.rows, fit)) });
  }
}

/**
 * The sizes of a task's bundle, and of the samples that this device has for it. `parameters` and `tensors` count the
 * values and tensors of an update, by tunable set; `classCounts` are the local samples of each class; `sampleBytes`
 * is the size of one prepared input; `weightsBytes` that of the whole model, `downloadBytes` that of the part still
 * to be fetched; `maps` counts the values of a feature map, by level.
 *
 * @typedef {{graphs: Map<string, GraphWork>, parameters: Map<string, number>, tensors: Map<string, number>,
 *   weightsBytes: number, downloadBytes: number, featureWidth: number, classCounts: number[],
 *   sampleBytes: number, maps?: Map<string, number>}} WorkloadFields
 */
export class Workload {
  /** @param {WorkloadFields} fields */
  constructor(fields) {
    this.graphs = fields.graphs;
    this.parameters = fields.parameters;
    this.tensors = fields.tensors;
    this.weightsBytes = fields.weightsBytes;
    this.downloadBytes = fields.downloadBytes;
    this.featureWidth = fields.featureWidth;
    this.classCounts = fields.classCounts;
    this.sampleBytes = fields.sampleBytes;
    this.maps = fields.maps ?? new Map();
  }

  /** The work of one graph. Raises MissingGraph. @returns {GraphWork} */
  graph(/** @type {string} */ name) {
    const graph = this.graphs.get(name);
    if (graph) return graph;
    throw new MissingGraph(`needs graph ${name}, the bundle has ${[...this.graphs.keys()].join(", ")}`);
  }

  /** Number of values that a tunable set trains. Raises MissingGraph if the bundle has no such set. */
  values(/** @type {string} */ tunable) {
    const count = this.parameters.get(tunable);
    if (count !== undefined) return count;
    const had = [...this.parameters.keys()].join(", ");
    throw new MissingGraph(`needs tunable set ${tunable}, the bundle has ${had}`);
  }

  get samples() {
    return this.classCounts.reduce((sum, count) => sum + count, 0);
  }

  get labels() {
    return this.classCounts.length;
  }

  /** FLOPs of one sample through the linear head alone. */
  get headFlops() {
    return 2 * this.featureWidth * this.labels;
  }

  /** The same workload with other values of these fields. @param {Partial<WorkloadFields>} fields */
  with(fields) {
    return new Workload({ ...this, ...fields });
  }
}

/**
 * A pass of `samples` samples through one graph, at `flops` operations each. `slowdown` (default 1): the pass's
 * seconds over those of the same operations in full batches. `steps` (default 0): optimizer steps of the linear
 * classifier alone in this pass.
 * @typedef {{graph: string, samples: number, flops: number, slowdown?: number, steps?: number}} GraphPass
 *
 * The work of one update. `peakBytes` comes on top of the idle process; up and down count payloads.
 * @typedef {{passes: GraphPass[], peakBytes: number, bytesUp: number, bytesDown: number}} Work
 *
 * The predicted cost of one update on one device. `seconds` covers download, compute and upload; `peakMemoryBytes`
 * is the whole process; `energyJ` is modelled; `flops` counts the operations of all passes.
 * @typedef {{seconds: number, computeS: number, peakMemoryBytes: number, bytesUp: number, bytesDown: number,
 *   energyJ: number, flops: number}} Cost
 *
 * The profile of one device, and its calibration by earlier rounds, by kind of update. `corrections`: measured over
 * predicted seconds. `growth`: measured over predicted bytes that an update adds to the process, 1 or more.
 * @typedef {{name: string, cores: number,
 *   memory: {totalBytes: number, limitBytes: number, residentBytes: number}, speed: Speed,
 *   bandwidth: {up: number, down: number, source: string},
 *   power: {idleW: number, loadW: number, source: string, uncertainty: number},
 *   battery?: {percent: number, plugged: boolean} | null, engine: string, corrections: Map<string, number>,
 *   growth: Map<string, number>}} Profile
 */

/** Bytes of an open session, without activations, of a graph whose file has `fileBytes`. @param {number} fileBytes */
export function sessionBytes(fileBytes) {
  return SESSION_BYTES + GRAPH_FACTOR * fileBytes;
}

/**
 * Peak bytes of one run's live activations and the open session; of `rows` samples if none are given.
 * @param {Workload} workload @param {string} graph @param {number} [samples] @returns {number}
 */
export function activationBytes(workload, graph, samples) {
  const work = workload.graph(graph);
  const n = Math.min(samples || work.rows, work.rows);
  if (work.heldBytes && n === work.rows) return work.heldBytes;
  return sessionBytes(work.fileBytes) + work.fixedBytes + n * work.bytesPerSample;
}

/**
 * The workload with this device's limit on a run and its measured memory of each graph.
 * @param {Workload} workload @param {Speed} speed @returns {Workload}
 */
export function withMeasuredMemory(workload, speed) {
  if (!speed.heldBytes.size && !speed.runBytes) return workload;
  const graphs = new Map();
  for (const [name, work] of workload.graphs) {
    const heldBytes = speed.heldBytes.get(name) ?? 0;
    graphs.set(name, new GraphWork({ ...work.within(speed.runBytes), heldBytes }));
  }
  return workload.with({ graphs });
}

/**
 * The cost of an update of this kind on this device, corrected by measurements of earlier rounds.
 * @param {Profile} profile @param {Work} work @param {string} kind @returns {Cost}
 */
export function predict(profile, work, kind) {
  const { speed, bandwidth, power, memory } = profile;
  let flops = 0;
  let compute = 0;
  for (const graph of new Set(work.passes.map((pass) => pass.graph))) compute += speed.opening.get(graph) ?? 0;
  for (const pass of work.passes) {
    const { slowdown = 1, steps = 0 } = pass;
    compute += pass.samples * slowdown * speed.of(pass.graph, pass.flops) + steps * speed.stepS;
    flops += pass.samples * pass.flops;
  }
  compute *= profile.corrections.get(kind) ?? 1;
  const grown = whole(work.peakBytes * (profile.growth.get(kind) ?? 1));
  const transfer = work.bytesUp / bandwidth.up + work.bytesDown / bandwidth.down;
  return {
    seconds: compute + transfer,
    computeS: compute,
    peakMemoryBytes: memory.residentBytes + grown,
    bytesUp: work.bytesUp,
    bytesDown: work.bytesDown,
    energyJ: compute * power.loadW + transfer * power.idleW,
    flops,
  };
}

/**
 * The same cost with another size of the update on the wire. @param {Cost} cost @param {number} bytesUp
 * @param {Profile} profile @returns {Cost}
 */
export function withUpload(cost, bytesUp, { bandwidth, power }) {
  const moreS = (bytesUp - cost.bytesUp) / bandwidth.up;
  return { ...cost, bytesUp, seconds: cost.seconds + moreS, energyJ: cost.energyJ + moreS * power.idleW };
}
