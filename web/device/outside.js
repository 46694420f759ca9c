/**
 * A graph whose weights are given to a session by name. The graphs of a bundle say of each such initialiser
 * that it stands at byte 0 of a file "weights" (models/torch_writer.py); here each says that it is a file of
 * its own. Field numbers are those of onnx.proto.
 */

import { concat, text, utf8 } from "./bytes.js";
import { BundleError } from "./errors.js";
import { delimited, fields } from "./protobuf.js";

const MODEL_GRAPH = 7;
const GRAPH_INITIALISER = 5;
const TENSOR_NAME = 8;
const TENSOR_EXTERNAL = 13;
const ENTRY_KEY = 1;
const ENTRY_VALUE = 2;
const LOCATION = "location";

/**
 * The model, and the names of the initialisers that are to be given, each as the file of its name.
 * @param {Uint8Array} onnx
 * @returns {{model: Uint8Array, names: string[]}} Raises BundleError for what is no model.
 */
export function outside(onnx) {
  /** @type {string[]} */
  const names = [];
  const model = concat(
    [...fields(onnx)].map((field) =>
      field.number === MODEL_GRAPH ? delimited(MODEL_GRAPH, graph(field.content, names)) : field.encoded,
    ),
  );
  return { model, names };
}

/** @param {Uint8Array} data @param {string[]} names are added */
function graph(data, names) {
  return concat(
    [...fields(data)].map((field) => {
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
