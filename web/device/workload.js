/** The workload and work of training, for the cost model (strategies/training/workload.py). */

import { codecNamed } from "./codecs.js";
import { GraphWork, Workload, activationBytes } from "./cost.js";

/** @typedef {import("./cost.js").Work} Work */
/** @typedef {import("./cost.js").GraphPass} GraphPass */

/** Bytes of a contribution's message and topic around its tensors. */
export const ENVELOPE_BYTES = 120;
/** How many times longer a sample takes alone than in a batch of 32. */
export const SINGLE_SAMPLE_SLOWDOWN = 5;
/** Values that the optimiser processes at once (models/engines/base.py). */
export const BLOCK = 1 << 15;
/** Samples of one run, if memory allows. */
export const BATCH = 32;

/** Bytes of one value. @type {Record<string, number>} */
const ITEM_BYTES = { float32: 4, int64: 8, float16: 2, int32: 4 };

/** @param {number[]} shape */
const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);

/**
 * The workload of this bundle on data with these class counts, in batches of up to `batch` samples.
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
    weightsBytes: stored.reduce((/** @type {number} */ sum, /** @type {any} */ spec) => sum + bytes(spec), 0),
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

/** Bytes of live activations of one run, about; a batch with more is cut into several runs. */
export const RUN_BYTES = 64 << 20;
/** Memory of ONNX Runtime's arena over live activations. */
export const ARENA_FACTOR = 2;

/**
 * Samples of one run of a graph: `most`, or fewer (at least 1) to keep live activations within `runBytes`. A graph that
 * computes statistics of the batch always runs `most`.
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
 * Passes of samples through graphs: `passes(load, {forward: 100, "train.mid": 250})`.
 * @param {Workload} load @param {Record<string, number>} samples @returns {GraphPass[]}
 */
export function passes(load, samples) {
  return Object.entries(samples).map(([graph, count]) => ({
    graph,
    samples: count,
    flops: load.graph(graph).flops,
  }));
}

/**
 * Bytes on the wire of `values` float32 parameters in `tensors` tensors by this codec, with header and envelope.
 * `exact`: how many other 32-bit values the tensors hold, which a codec leaves as they are.
 * @param {number} values @param {number} tensors @param {string} [codec] @param {number} [exact]
 */
export function uploadBytes(values, tensors, codec = "", exact = 0) {
  return codecNamed(codec).payloadBytes(values, tensors, exact) + ENVELOPE_BYTES;
}

/**
 * SGD on a tunable set over `trained` samples in all, after a forward pass over `scored` samples. `kept`: extra vectors
 * of the set's size in memory. `singly`: samples are run one by one. `codec`: the codec that the update is sent by.
 * @typedef {{tunable: string, trained: number, scored?: number, batch?: number, objective?: string,
 *   kept?: number, singly?: boolean, codec?: string}} Training
 */

/**
 * The work of training. Memory: weights, gradients and momentum of the set, and summed gradients if a batch takes
 * several runs; the optimiser's block; the model itself; a run's activations, and those of the forward pass that
 * scored; the data, and a batch drawn from it.
 * @param {Workload} load @param {Training} training @returns {Work}
 */
export function workOfTraining(load, training) {
  const { tunable, trained, scored = 0, batch = BATCH, objective = "train", kept: copies = 0, codec = "" } = training;
  const name = `${objective}.${tunable}`;
  const values = load.values(tunable);
  const graph = load.graph(name);
  const forward = scored ? passes(load, { forward: scored }) : [];
  const rows = training.singly ? 1 : batch;
  const vectors = 3 + copies + (rows > graph.rows ? 1 : 0);
  const setBytes = 4 * (vectors * values + BLOCK);
  const dataBytes = (load.samples + Math.min(batch, load.samples)) * load.sampleBytes;
  const baseBytes = setBytes + 2 * load.weightsBytes + dataBytes + (scored ? activationBytes(load, "forward") : 0);
  const slowdown = training.singly ? SINGLE_SAMPLE_SLOWDOWN : 1;
  return {
    passes: [...forward, { graph: name, samples: trained, flops: graph.flops, slowdown }],
    peakBytes: baseBytes + activationBytes(load, name, rows),
    bytesUp: uploadBytes(values, load.tensors.get(tunable) ?? 0, codec),
    bytesDown: load.downloadBytes,
  };
}

/**
 * The work of computing and keeping features of `samples` samples, and sending `valuesUp` float32 values by this codec.
 * @param {Workload} load @param {number} samples @param {number} valuesUp @param {string} [codec]
 * @returns {Work}
 */
export function forwardWork(load, samples, valuesUp, codec = "") {
  const features = 4 * load.featureWidth * samples;
  const baseBytes = 2 * load.weightsBytes + load.samples * load.sampleBytes + features;
  return {
    passes: passes(load, { forward: samples }),
    peakBytes: baseBytes + activationBytes(load, "forward"),
    bytesUp: uploadBytes(valuesUp, 2, codec),
    bytesDown: load.downloadBytes,
  };
}
