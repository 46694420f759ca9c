/**
 * A graph whose weights are given to a session by name. The graphs of a bundle say of each such initialiser
 * that it stands at byte 0 of a file "weights" (models/torch_writer.py); here each says that it is a file of
 * its own. Field numbers are those of onnx.proto.
 */

import { concat, text, utf8 } from "./bytes.js";
import { BundleError } from "./errors.js";
import { delimited, fields } from "./protobuf.js";

const MODEL_GRAPH = 7;
const MODEL_FUNCTION = 25;
const GRAPH_NODE = 1;
const GRAPH_INITIALISER = 5;
const NODE_ATTRIBUTE = 5;
const ATTRIBUTE_GRAPHS = [6, 11];
const TENSOR_NAME = 8;
const TENSOR_EXTERNAL = 13;
const ENTRY_KEY = 1;
const ENTRY_VALUE = 2;
const LOCATION = "location";

/**
 * The model, and the names of the initialisers that are to be given, each as the file of its name.
 * @param {Uint8Array} onnx
 * @returns {{model: Uint8Array, names: string[]}} Raises BundleError for what is no model, and for one with a graph
 *   within its graph or functions: a loop need not end, and a bundle's graphs have none.
 */
export function outside(onnx) {
  /** @type {string[]} */
  const names = [];
  const parts = [...fields(onnx)];
  if (parts.some((field) => field.number === MODEL_FUNCTION)) throw new BundleError("a graph has functions of its own");
  const model = concat(
    parts.map((field) =>
      field.number === MODEL_GRAPH ? delimited(MODEL_GRAPH, graph(field.content, names)) : field.encoded,
    ),
  );
  return { model, names };
}

/** Raises BundleError for one that holds graphs: a loop, a branch. @param {Uint8Array} data of a node */
function checkNode(data) {
  for (const { number, content } of fields(data)) {
    if (number !== NODE_ATTRIBUTE) continue;
    if ([...fields(content)].some((field) => ATTRIBUTE_GRAPHS.includes(field.number))) {
      throw new BundleError("a graph has another within it, of a loop or a branch");
    }
  }
}

/** @param {Uint8Array} data @param {string[]} names are added */
function graph(data, names) {
  return concat(
    [...fields(data)].map((field) => {
      if (field.number === GRAPH_NODE) checkNode(field.content);
      if (field.number !== GRAPH_INITIALISER) return field.encoded;
      const parts = [...fields(field.content)];
      if (!parts.some((part) => part.number === TENSOR_EXTERNAL)) return field.encoded;
      const name = nameOf(parts);
      names.push(name);
      return delimited(GRAPH_INITIALISER, concat(parts.map((part) => moved(part, name))));
    }),
  );
}

/** @param {import("./protobuf.js").Field[]} parts of a tensor */
function nameOf(parts) {
  const found = parts.find((part) => part.number === TENSOR_NAME);
  if (!found) throw new BundleError("a graph has an initialiser without a name");
  return text(found.content);
}

/** @param {import("./protobuf.js").Field} part of a tensor @param {string} name */
function moved(part, name) {
  if (part.number !== TENSOR_EXTERNAL) return part.encoded;
  const entry = [...fields(part.content)];
  const key = entry.find((one) => one.number === ENTRY_KEY);
  if (!key || text(key.content) !== LOCATION) return part.encoded;
  return delimited(
    TENSOR_EXTERNAL,
    concat(
      entry.map((one) => (one.number === ENTRY_VALUE ? delimited(ENTRY_VALUE, utf8(name)) : one.encoded)),
    ),
  );
}
