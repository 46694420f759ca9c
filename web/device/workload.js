/** From a bundle and the local data to what the cost model understands, as strategies/training/workload.py. */

import { named } from "./codecs.js";
import { GraphWork, Workload, activationBytes } from "./cost.js";

/** @typedef {import("./cost.js").Work} Work */
/** @typedef {import("./cost.js").Pass} Pass */

/** A contribution's message and topic around its tensors. */
export const ENVELOPE_BYTES = 120;
/** A sample alone over its share of a batch of 32, in seconds. */
export const SINGLY = 5;
/** Values that the optimiser works on at once (models/engines/blocks.py). */
export const BLOCK = 1 << 15;
/** Samples of one run, where the memory allows it. */
export const BATCH = 32;

/** Bytes of one value. @type {Record<string, number>} */
const ITEM_BYTES = { float32: 4, int64: 8, float16: 2, int32: 4 };

/** @param {number[]} shape */
const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);

/**
 * What training this bundle on data with these class counts takes.
 * @param {any} manifest see manifest.js @param {number[]} classCounts @param {number} [batch]
 */
export function workload(manifest, classCounts, batch = BATCH) {
  const graphs = new Map();
  for (const [name, graph] of Object.entries(manifest.graphs)) {
    graphs.set(name, graphWork(/** @type {any} */ (graph), batch));
  }
  const parameters = new Map();
  const tensors = new Map();
  for (const name of Object.keys(manifest.sets)) {
    const sent = [...manifest.specs(name), ...manifest.statistics(name)];
    parameters.set(name, sent.reduce((sum, spec) => sum + sizeOf(spec.shape), 0));
    tensors.set(name, sent.length);
  }
  const stored = manifest.stored();
  const bytes = (/** @type {any} */ spec) => ITEM_BYTES[spec.dtype] * sizeOf(spec.shape);
  const maps = Object.entries(manifest.features).filter(([level]) => level !== "head");
  return new Workload({
    graphs,
    parameters,
    tensors,
    weightsBytes: stored.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + bytes(one), 0),
    downloadBytes: manifest.weights.bytes,
    featureWidth: manifest.head.features,
    classCounts,
    sampleBytes: bytes(manifest.input),
    maps: new Map(maps.map(([level, shape]) => [level, sizeOf(/** @type {number[]} */ (shape))])),
  });
}

/** @param {any} graph of the manifest @param {number} batch */
function graphWork(graph, batch) {
  const fixedBytes = memoryBytes(graph, 0);
  return new GraphWork({
    flops: graph.flops,
    fixedBytes,
    bytesPerSample: memoryBytes(graph, 1) - fixedBytes,
    rows: rowsOf(graph, batch),
    fileBytes: graph.bytes,
    isWhole: graph.statistics.length > 0,
  });
}

/** The most live activations of one run, in bytes. */
export const RUN_BYTES = 64 << 20;
/** The runtime's arena over live activations. */
export const ARENA_FACTOR = 2;

/**
 * Samples of one run of a graph: `most`, or as few as keep live activations within `runBytes`. Where the
 * graph computes statistics of the batch, all of `most`.
 * @param {any} graph of the manifest @param {number} most @param {number} [runBytes]
 */
export function rowsOf(graph, most, runBytes = RUN_BYTES) {
  if (graph.statistics.length) return most;
  const fit = Math.floor((runBytes - graph.fixed_bytes) / Math.max(1, graph.bytes_per_sample));
  return Math.max(1, Math.min(most, fit));
}

/** Predicted growth of the process in one run. @param {any} graph of the manifest @param {number} samples */
export function memoryBytes(graph, samples) {
  return ARENA_FACTOR * (graph.fixed_bytes + samples * graph.bytes_per_sample);
}

/** The parameters of the linear head alone. @param {any} manifest */
export function headSpecs(manifest) {
  const names = [manifest.head.weight, manifest.head.bias];
  return manifest.stored().filter((/** @type {any} */ spec) => names.includes(spec.name));
}

/**
 * Samples through each graph: `passes(load, {forward: 100, "train.mid": 250})`.
 * @param {Workload} load @param {Record<string, number>} samples @returns {Pass[]}
 */
export function passes(load, samples) {
  return Object.entries(samples).map(([graph, count]) => ({
    graph,
    samples: count,
    flops: load.graph(graph).flops,
  }));
}

/**
 * On the wire: float32 parameters in this many named tensors by this codec, with header and envelope.
 * `exact`: values of 32 bits besides, which a codec leaves as they are.
 * @param {number} values @param {number} tensors @param {string} [codec] @param {number} [exact]
 */
export function uploadBytes(values, tensors, codec = "", exact = 0) {
  return named(codec).payloadBytes(values, tensors, exact) + ENVELOPE_BYTES;
}

/**
 * SGD on a tunable set over `trained` samples in all, after a forward pass over `scored` samples. `kept`:
 * vectors of the set that are held beside those of any training. `singly`: samples are run one by one.
 * @typedef {{tunable: string, trained: number, scored?: number, batch?: number, objective?: string,
 *   kept?: number, singly?: boolean, codec?: string}} Training
 */

/**
 * Memory: weights, gradients and momentum of the set, and summed gradients where a batch takes several runs;
 * the optimiser's block; the model itself; a run's activations, and one's that scored; the data, and a batch
 * of it.
 * @param {Workload} load @param {Training} training @returns {Work}
 */
export function workOf(load, training) {
  const { tunable, trained, scored = 0, batch = BATCH, objective = "train", kept = 0, codec = "" } = training;
  const name = `${objective}.${tunable}`;
  const values = load.values(tunable);
  const graph = load.graph(name);
  const forward = scored ? passes(load, { forward: scored }) : [];
  const rows = training.singly ? 1 : batch;
  const vectors = 3 + kept + (rows > graph.rows ? 1 : 0);
  const setBytes = 4 * (vectors * values + BLOCK);
  const dataBytes = (load.samples + Math.min(batch, load.samples)) * load.sampleBytes;
  const held = setBytes + 2 * load.weightsBytes + dataBytes + (scored ? activationBytes(load, "forward") : 0);
  const slowdown = training.singly ? SINGLY : 1;
  return {
    passes: [...forward, { graph: name, samples: trained, flops: graph.flops, slowdown }],
    peakBytes: held + activationBytes(load, name, rows),
    bytesUp: uploadBytes(values, load.tensors.get(tunable) ?? 0, codec),
    bytesDown: load.downloadBytes,
  };
}

/**
 * Features of `samples` samples, kept; `valuesUp` float32 values sent by this codec.
 * @param {Workload} load @param {number} samples @param {number} valuesUp @param {string} [codec]
 * @returns {Work}
 */
export function forwardWork(load, samples, valuesUp, codec = "") {
  const features = 4 * load.featureWidth * samples;
  const held = 2 * load.weightsBytes + load.samples * load.sampleBytes + features;
  return {
    passes: passes(load, { forward: samples }),
    peakBytes: held + activationBytes(load, "forward"),
    bytesUp: uploadBytes(valuesUp, 2, codec),
    bytesDown: load.downloadBytes,
  };
}
