/** The cost model, as profiles/cost.py: what an update will take, before anything runs. Pure functions. */

import { MissingGraph } from "./errors.js";
import { whole } from "./rounding.js";

/** What an open session holds besides its graph, weights and activations, in bytes. */
export const SESSION_BYTES = 12 * 2 ** 20;
/** What ONNX Runtime holds of an open graph, over its file. */
export const GRAPH_FACTOR = 128;

/**
 * How fast a bundle's graphs run here; names are those of graphs. `seconds` for a sample, as measured;
 * `opening`: until a graph can be run; `stepS`: of one step of a linear classifier alone; `heldBytes`: with a
 * whole run in it; `runBytes`: what a run may hold beside the weights, 0 for no limit but the graph's own.
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
 * One graph of a bundle: operations per sample, and what a run holds beside the weights, in bytes. `rows`:
 * the most samples of one run; `heldBytes`: what an open session with so many in it holds, 0 where that is
 * not known; `isWhole`: a run is never of fewer.
 */
export class GraphWork {
  /** @param {Partial<GraphWork>} given */
  constructor(given) {
    this.flops = given.flops ?? 0;
    this.fixedBytes = given.fixedBytes ?? 0;
    this.bytesPerSample = given.bytesPerSample ?? 0;
    this.rows = given.rows ?? 32;
    this.fileBytes = given.fileBytes ?? 0;
    this.heldBytes = given.heldBytes ?? 0;
    this.isWhole = given.isWhole ?? false;
  }

  /** In runs that hold no more than this beside the weights; one sample at least. 0 sets no limit. */
  within(/** @type {number} */ runBytes) {
    if (this.isWhole || !runBytes) return this;
    const fit = Math.floor((runBytes - this.fixedBytes) / Math.max(1, this.bytesPerSample));
    return new GraphWork({ ...this, rows: Math.max(1, Math.min(this.rows, fit)) });
  }
}

/**
 * What a task asks and what data this device has for it: `parameters` counts values and `tensors` tensors of
 * an update of each tunable set; `weightsBytes` is the whole model, `downloadBytes` what of it must still be
 * fetched; `maps` counts the values of a feature map at each level.
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
    const found = this.graphs.get(name);
    if (found) return found;
    throw new MissingGraph(`needs graph ${name}, the bundle has ${[...this.graphs.keys()].join(", ")}`);
  }

  /** How many values a tunable set trains. Raises MissingGraph where the bundle has no such set. */
  values(/** @type {string} */ tunable) {
    const found = this.parameters.get(tunable);
    if (found !== undefined) return found;
    const had = [...this.parameters.keys()].join(", ");
    throw new MissingGraph(`needs tunable set ${tunable}, the bundle has ${had}`);
  }

  get samples() {
    return this.classCounts.reduce((sum, count) => sum + count, 0);
  }

  get labels() {
    return this.classCounts.length;
  }

  /** One sample through the linear head alone. */
  get headFlops() {
    return 2 * this.featureWidth * this.labels;
  }

  /** The same with these fields in place. @param {Partial<WorkloadFields>} fields */
  with(fields) {
    return new Workload({ ...this, ...fields });
  }
}

/**
 * `samples` samples through a graph, at `flops` operations each. `slowdown` (1): seconds over those that as
 * many operations in whole batches take. `steps` (0): of the classifier alone, in as many batches.
 * @typedef {{graph: string, samples: number, flops: number, slowdown?: number, steps?: number}} Pass
 *
 * What one update does. `peakBytes` is what it adds to the idle process; the wire counts payloads.
 * @typedef {{passes: Pass[], peakBytes: number, bytesUp: number, bytesDown: number}} Work
 *
 * Predicted for one update. `seconds` covers download, compute and upload; `peakMemoryBytes` is the whole
 * process; `energyJ` is modelled.
 * @typedef {{seconds: number, computeS: number, peakMemoryBytes: number, bytesUp: number, bytesDown: number,
 *   energyJ: number, flops: number}} Cost
 *
 * One device. `corrections` is measured over predicted seconds of earlier rounds, by kind; `growth` the same
 * of the bytes that an update adds to the process, 1 or above.
 * @typedef {{name: string, cores: number,
 *   memory: {totalBytes: number, limitBytes: number, residentBytes: number}, speed: Speed,
 *   bandwidth: {up: number, down: number, source: string},
 *   power: {idleW: number, loadW: number, source: string, uncertainty: number},
 *   battery?: {percent: number, plugged: boolean} | null, engine: string, corrections: Map<string, number>,
 *   growth: Map<string, number>}} Profile
 */

/** Of an open session of a graph whose file is so large. @param {number} fileBytes */
export function sessionBytes(fileBytes) {
  return SESSION_BYTES + GRAPH_FACTOR * fileBytes;
}

/**
 * Peak of live activations of one run, and of the session that holds it.
 * @param {Workload} workload @param {string} graph @param {number} [samples] @returns {number}
 */
export function activationBytes(workload, graph, samples) {
  const work = workload.graph(graph);
  const n = Math.min(samples || work.rows, work.rows);
  if (work.heldBytes && n === work.rows) return work.heldBytes;
  return sessionBytes(work.fileBytes) + work.fixedBytes + n * work.bytesPerSample;
}

/**
 * The same, in runs as this device makes them, with what it was seen to hold.
 * @param {Workload} workload @param {Speed} speed @returns {Workload}
 */
export function asMeasured(workload, speed) {
  if (!speed.heldBytes.size && !speed.runBytes) return workload;
  const graphs = new Map();
  for (const [name, work] of workload.graphs) {
    const heldBytes = speed.heldBytes.get(name) ?? 0;
    graphs.set(name, new GraphWork({ ...work.within(speed.runBytes), heldBytes }));
  }
  return workload.with({ graphs });
}

/**
 * What `work`, an update of this kind, costs on this device; corrected by what was measured before.
 * @param {Profile} profile @param {Work} work @param {string} kind @returns {Cost}
 */
export function predict(profile, work, kind) {
  const { speed, bandwidth, power, memory } = profile;
  let flops = 0;
  let compute = 0;
  for (const graph of new Set(work.passes.map((one) => one.graph))) compute += speed.opening.get(graph) ?? 0;
  for (const one of work.passes) {
    const { slowdown = 1, steps = 0 } = one;
    compute += one.samples * slowdown * speed.of(one.graph, one.flops) + steps * speed.stepS;
    flops += one.samples * one.flops;
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
