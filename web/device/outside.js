/**
 * Rewrites a graph so that a session can be given its weights by name. In the graphs of a bundle, each such initialiser
 * is at byte 0 of a file "weights" (models/export/operators/writer.py); here each becomes a file of its own. Field numbers are
 * those of onnx.proto.
 */

import { concat, text, utf8 } from "./bytes.js";
import { checkGraph } from "./graph_check.js";
import { delimited, fields } from "./protobuf.js";

const MODEL_GRAPH = 7;
const GRAPH_INITIALISER = 5;
const TENSOR_NAME = 8;
const TENSOR_EXTERNAL = 13;
const ENTRY_KEY = 1;
const ENTRY_VALUE = 2;
const LOCATION = "location";

/**
 * The model, and the names of the initialisers that the session must be given, each as the file of its name. Raises
 * BundleError for a graph with anything that is not allowed.
 * @param {Uint8Array} onnx @returns {{model: Uint8Array, names: string[]}}
 */
export function outside(onnx) {
  const names = checkGraph(onnx);
  const parts = [...fields(onnx)].map((field) =>
    field.number === MODEL_GRAPH ? delimited(MODEL_GRAPH, graph(field.content, new Set(names))) : field.encoded,
  );
  return { model: concat(parts), names };
}

/** @param {Uint8Array} data @param {Set<string>} names of the initialisers that lie outside */
function graph(data, names) {
  return concat(
    [...fields(data)].map((field) => {
      if (field.number !== GRAPH_INITIALISER) return field.encoded;
      const parts = [...fields(field.content)];
      const name = text(/** @type {any} */ (parts.find((part) => part.number === TENSOR_NAME)).content);
      if (!names.has(name)) return field.encoded;
      return delimited(GRAPH_INITIALISER, concat(parts.map((part) => moved(part, name))));
    }),
  );
}

/** @param {import("./protobuf.js").Field} part of a tensor @param {string} name */
function moved(part, name) {
  if (part.number !== TENSOR_EXTERNAL) return part.encoded;
  const entry = [...fields(part.content)];
  const key = entry.find((field) => field.number === ENTRY_KEY);
  if (!key || text(key.content) !== LOCATION) return part.encoded;
  return delimited(
    TENSOR_EXTERNAL,
    concat(
      entry.map((field) => (field.number === ENTRY_VALUE ? delimited(ENTRY_VALUE, utf8(name)) : field.encoded)),
    ),
  );
}
