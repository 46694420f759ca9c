/** Checks that the parts of a manifest fit each other. Part of models/bundles/bundle.py. */

import { isPlain } from "./archive.js";
import { BundleError } from "./errors.js";
import { shapeText } from "./flat.js";
import { LEVELS, TRAINING } from "./manifest_schema.js";

/** @typedef {import("./manifest.js").Manifest} Manifest */

const PRECISIONS = ["int8", "float16"];
const ORT_TRAINING = "ort-training";
/** Characters that Python does not print: also those that change the direction of writing, and spaces but U+0020. */
const STRANGE = /\p{C}|(?! )\p{Z}/u;

/** Raises BundleError, naming the bundle and the two parts that do not fit. @param {Manifest} manifest */
export function checkManifest(manifest) {
  try {
    checkNames(manifest);
    checkGraphs(manifest);
    checkHead(manifest);
  } catch (error) {
    if (!(error instanceof BundleError)) throw error;
    throw new BundleError(`manifest of bundle ${manifest.name}: ${error.message}`);
  }
}

/** @param {Manifest} manifest */
function checkNames(manifest) {
  const { text } = manifest.input;
  const entries = [manifest.weights, ...Object.values(manifest.graphs), ...(text ? [text.tokenizer] : [])];
  const files = entries.map((entry) => entry.file);
  for (const file of files) {
    if (!isPlain(file))
      throw new BundleError(`names the file ${JSON.stringify(file)}, expected a plain file name`);
  }
  const parameters = manifest.stored().map((spec) => spec.name);
  const words = text ? [text.template, ...text.words] : [];
  const strange = [manifest.name, ...manifest.labels, ...words, ...parameters].find((name) => STRANGE.test(name));
  if (strange) throw new BundleError(`names ${JSON.stringify(strange)}, expected printable characters`);
  checkOnce("file", files);
  checkOnce("label", manifest.labels);
  if (text?.words.length && text.words.length !== manifest.labels.length) {
    throw new BundleError(`has ${text.words.length} words for ${manifest.labels.length} labels`);
  }
  checkOnce("parameter", parameters);
}

/** @param {string} what @param {string[]} names */
function checkOnce(what, names) {
  const unique = new Set();
  for (const name of names) {
    if (unique.has(name)) throw new BundleError(`${what} '${name}' occurs twice`);
    unique.add(name);
  }
}

/**
 * The parameters that each possible graph takes as inputs.
 * @param {Manifest} manifest @returns {Map<string, Set<string>>}
 */
function inputLength(manifest) {
  const forward = ["forward", ...PRECISIONS.map((precision) => `forward.${precision}`)];
  const features = LEVELS.slice(0, -1).map((level) => `features.${level}`);
  /** @type {Map<string, Set<string>>} */
  const takes = new Map([...forward, ...features].map((name) => [name, new Set()]));
  for (const tunable of Object.keys(manifest.sets)) {
    const names = new Set(manifest.names(tunable));
    for (const kind of ["loss", ...TRAINING, ORT_TRAINING]) takes.set(`${kind}.${tunable}`, names);
  }
  return takes;
}

/** @param {Manifest} manifest */
function checkGraphs(manifest) {
  if (!Object.hasOwn(manifest.graphs, "forward")) throw new BundleError("lists no graph 'forward'");
  for (const parameter of manifest.parameters) {
    const unknown = parameter.sets.find((/** @type {string} */ set) => !Object.hasOwn(manifest.sets, set));
    if (unknown)
      throw new BundleError(`parameter ${parameter.name} is in set ${unknown}, which is not listed`);
    if (parameter.sets.length && parameter.dtype !== "float32") {
      throw new BundleError(`parameter ${parameter.name} of ${parameter.dtype} is in a tunable set`);
    }
  }
  const takes = inputLength(manifest);
  for (const [name, graph] of Object.entries(manifest.graphs)) {
    const expected = takes.get(name);
    if (!expected) throw new BundleError(`graph '${name}' is none of ${[...takes.keys()].join(", ")}`);
    const [kind, level] = name.split(".");
    if (kind === "features" && !Object.hasOwn(manifest.features, level)) {
      throw new BundleError(
        `graph ${name} has no shape; features has ${Object.keys(manifest.features).join(", ")}`,
      );
    }
    checkInputs(manifest, name);
    const trainable = new Set(graph.trainable);
    const differing = [...new Set([...expected, ...trainable])]
      .filter((tensor) => !expected.has(tensor) || !trainable.has(tensor))
      .sort();
    if (differing.length)
      throw new BundleError(`graph ${name} and its tunable set differ in ${differing[0]}`);
  }
}

/** @param {Manifest} manifest @param {string} name */
function checkInputs(manifest, name) {
  const graph = manifest.graphs[name];
  /** @type {Map<string, any>} */
  const stored = new Map(manifest.parameters.map((/** @type {any} */ parameter) => [parameter.name, parameter]));
  const sources = graph.derived.map((/** @type {any} */ tensor) => tensor.parameter);
  const used = [...graph.trainable, ...graph.frozen, ...graph.statistics, ...sources].sort();
  const unknown = used.find((tensor) => !stored.has(tensor));
  if (unknown !== undefined) throw new BundleError(`graph ${name} takes ${unknown}, which is no parameter`);
  for (const statistic of graph.statistics) {
    const { sets, dtype } = stored.get(statistic);
    if (sets.length)
      throw new BundleError(`graph ${name} has ${statistic} as a statistic, which is in a tunable set`);
    if (dtype !== "float32") throw new BundleError(`graph ${name} has ${statistic} of ${dtype} as a statistic`);
  }
  for (const derived of graph.derived) {
    const { dtype, shape } = stored.get(derived.parameter);
    if (dtype === "float32" && shape.length > 1) continue;
    throw new BundleError(`graph ${name} derives ${derived.name} from ${dtype} of shape ${shapeText(shape)}`);
  }
  checkOnce("initialiser", [...graph.frozen, ...graph.derived.map((/** @type {any} */ tensor) => tensor.name)]);
  checkOnce("statistic", graph.statistics);
  checkOnce("input", ["x", "y", ...graph.extras.map((/** @type {any} */ extra) => extra.name), ...stored.keys()]);
}

/** @param {Manifest} manifest */
function checkHead(manifest) {
  const { head, labels, features } = manifest;
  const shapes = [[head.weight, [labels.length, head.features]]];
  if (head.bias !== null) shapes.push([head.bias, [labels.length]]);
  for (const [name, shape] of /** @type {[string, number[]][]} */ (shapes)) {
    const actual = manifest.parameters.find((/** @type {any} */ parameter) => parameter.name === name)?.shape;
    if (actual && shapeText(actual) === shapeText(shape)) continue;
    throw new BundleError(
      `head parameter ${name} is ${actual ? shapeText(actual) : "missing"}, expected ${shapeText(shape)}`,
    );
  }
  const top = features.head ?? [head.features];
  if (top.length !== 1 || top[0] !== head.features) {
    throw new BundleError(`features of the head are ${shapeText(top)}, expected (${head.features},)`);
  }
}
