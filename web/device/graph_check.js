/**
 * Checks a graph before a session is made: it may hold only what allowed_graphs.js lists
 * (models/bundles/graph_check.py, which gives the same errors).
 */

import { ALLOWED } from "./allowed_graphs.js";
import { hex, text } from "./bytes.js";
import { BundleError } from "./errors.js";
import { DELIMITED, FIXED_32, VARINT, fields, numberOf } from "./protobuf.js";

/** @type {Record<string, number>} */
const WIRES = { varint: VARINT, fixed32: FIXED_32, delimited: DELIMITED };
/** A file with "ORTM" from byte 4 on may be read in ONNX Runtime's own format, not as protobuf. */
const OTHER_FORMAT = "4f52544d";
const LARGEST = 2 ** 53;

/**
 * @typedef {{name: string, wire: string, needed?: boolean, times?: number, most?: number, message?: string,
 *   from?: number, to?: number, one_of?: number[]}} Rule
 * @typedef {Record<string, any[]>} Message the values of each field by its name; empty for a field that is absent
 */

/** @type {Record<string, Record<string, Rule>>} */
const MESSAGES = /** @type {any} */ (ALLOWED.messages);
/** @type {Map<string, Set<string>>} */
const OPERATORS = new Map(Object.entries(ALLOWED.operators).map(([domain, names]) => [domain, new Set(names)]));

/**
 * Checks a graph, and returns the names of the initialisers that the session must be given in memory. Raises
 * BundleError for a graph with anything that is not allowed.
 * @param {Uint8Array} onnx @returns {string[]}
 */
export function checkGraph(onnx) {
  if (onnx.length > ALLOWED.most_bytes) {
    throw new BundleError(`it has ${onnx.length} bytes, at most ${ALLOWED.most_bytes} are read`);
  }
  if (hex(onnx.subarray(4, 8)) === OTHER_FORMAT) {
    throw new BundleError("it is in ONNX Runtime's own format, expected ONNX");
  }
  const model = read(onnx, "model", { left: ALLOWED.most_fields });
  const [graph] = model.graph;
  checkDomains(model);
  graph.node.forEach(checkOperator);
  graph.node.forEach(checkAttributes);
  checkNames(graph);
  return graph.initializer.filter(liesOutside).map((/** @type {Message} */ tensor) => tensor.name[0]);
}

/** @param {Uint8Array} data @param {string} kind @param {{left: number}} budget of fields @returns {Message} */
function read(data, kind, budget) {
  const rules = MESSAGES[kind];
  /** @type {Message} */
  const byName = Object.fromEntries(Object.values(rules).map((rule) => [rule.name, []]));
  for (const field of fields(data)) {
    budget.left -= 1;
    if (budget.left < 0) throw new BundleError(`it has more than ${ALLOWED.most_fields} fields`);
    const rule = rules[field.number];
    if (!rule) throw new BundleError(unknown(kind, field.number));
    if (field.wire !== WIRES[rule.wire]) {
      throw new BundleError(`${rule.name} of ${a(kind)} is of kind ${field.wire}, expected ${rule.wire}`);
    }
    const [values, times] = [byName[rule.name], rule.times ?? 1];
    if (values.length === times) {
      throw new BundleError(`${a(kind)} has ${rule.name} more than ${times === 1 ? "once" : `${times} times`}`);
    }
    if (rule.message) values.push(read(field.content, rule.message, budget));
    else if (rule.wire === "delimited") values.push(textOf(kind, rule, field.content));
    else values.push(rule.wire === "varint" ? checkedNumber(kind, rule, numberOf(field)) : null);
  }
  const missing = Object.values(rules).find((rule) => rule.needed && !byName[rule.name].length);
  if (missing) throw new BundleError(`${a(kind)} has no ${missing.name}`);
  return byName;
}

/** @param {string} kind @param {number} field */
function unknown(kind, field) {
  /** @type {Record<string, Record<string, string>>} */
  const refused = ALLOWED.refused;
  return `${a(kind)} has ${refused[kind]?.[field] ?? `field ${field}`}, which is not allowed`;
}

/** @param {string} kind */
const a = (kind) => (/^[aeio]/.test(kind) ? `an ${kind}` : `a ${kind}`);

/**
 * The text of a field; empty for data, which is not read here.
 * @param {string} kind @param {Rule} rule @param {Uint8Array} content
 */
function textOf(kind, rule, content) {
  if (rule.most === undefined) return "";
  if (content.length > rule.most) {
    throw new BundleError(`${rule.name} of ${a(kind)} has ${content.length} bytes, at most ${rule.most} are read`);
  }
  try {
    return text(content);
  } catch {
    throw new BundleError(`${rule.name} of ${a(kind)} is not UTF-8: ${hex(content.subarray(0, 40))}`);
  }
}

/** @param {string} kind @param {Rule} rule @param {number} value */
function checkedNumber(kind, rule, value) {
  const subject = `${rule.name} of ${a(kind)} is ${value <= LARGEST ? value : "beyond 2**53"}, expected`;
  if (rule.one_of && !rule.one_of.includes(value)) {
    throw new BundleError(`${subject} one of ${rule.one_of.join(", ")}`);
  }
  if (rule.from !== undefined && (value < rule.from || value > (rule.to ?? 0))) {
    throw new BundleError(`${subject} ${rule.from} to ${rule.to}`);
  }
  return value;
}

/** @param {Message} model */
function checkDomains(model) {
  const domains = model.opset_import.map(domainOf);
  domains.forEach((domain, index) => {
    if (!OPERATORS.has(domain)) {
      throw new BundleError(`it takes operators of ${quoted(domain)}, which are not allowed`);
    }
    if (domains.indexOf(domain) < index) throw new BundleError(`it takes operators of ${quoted(domain)} twice`);
  });
}

/** @param {Message} node */
function checkOperator(node) {
  const domain = domainOf(node);
  const operator = node.op_type[0];
  if (!OPERATORS.get(domain)?.has(operator)) {
    const whole = domain ? `${domain}.${operator}` : operator;
    if (ALLOWED.random.includes(operator)) {
      throw new BundleError(`operator ${whole} draws random numbers, which is not allowed`);
    }
    throw new BundleError(`operator ${quoted(whole)} is not allowed`);
  }
  if (ALLOWED.all_inputs.includes(operator) && node.input.includes("")) {
    throw new BundleError(`operator ${operator} has an input without a name`);
  }
}

/** The operator domain; ONNX's own has two names, "" and "ai.onnx". @param {Message} message @returns {string} */
function domainOf({ domain: [domain = ""] }) {
  return domain === "ai.onnx" ? "" : domain;
}

/** Checks that each attribute occurs once, with a value of its type and no other. @param {Message} node */
function checkAttributes(node) {
  const names = new Set();
  /** @type {Record<string, string>} */
  const named = ALLOWED.value_of_type;
  for (const attribute of node.attribute) {
    const [[name], [kind]] = [attribute.name, attribute.type];
    if (names.has(name)) throw new BundleError(`a node has attribute ${quoted(name)} twice`);
    names.add(name);
    const other = Object.values(named).find((type) => attribute[type].length && type !== named[kind]);
    if (other) throw new BundleError(`attribute ${quoted(name)} is of type ${kind} and has ${other}`);
  }
}

/** Checks that every value is made only once: by an input, an initialiser or a node. @param {Message} graph */
function checkNames(graph) {
  const values = new Set();
  const named = [...graph.input, ...graph.initializer].map((input) => input.name[0]);
  for (const name of [...named, ...graph.node.flatMap((/** @type {Message} */ node) => node.output.filter(Boolean))]) {
    if (values.has(name)) throw new BundleError(`value ${quoted(name)} is made twice`);
    values.add(name);
  }
}

/**
 * Whether an initialiser has no data in the graph. Raises BundleError for one that names a real file, or another length
 * than its shape gives. @param {Message} tensor
 */
function liesOutside(tensor) {
  const name = quoted(tensor.name[0]);
  if (!tensor.data_location[0]) {
    if (tensor.external_data.length) throw new BundleError(`initialiser ${name} has data, and names a file`);
    return false;
  }
  if (ALLOWED.data.some((data) => tensor[data].length)) {
    throw new BundleError(`initialiser ${name} has data inside and outside`);
  }
  /** @type {Record<string, number>} */
  const sizes = ALLOWED.element_bytes;
  const length = tensor.dims.reduce((product, size) => product * size, sizes[tensor.data_type[0]]);
  if (length > ALLOWED.most_tensor_bytes) throw new BundleError(`initialiser ${name} has too many bytes`);
  const entriesByKey = new Map(tensor.external_data.map((entry) => [entry.key[0], entry.value[0]]));
  const expected = new Map([...Object.entries(ALLOWED.outside), ["length", String(length)]]);
  if (entriesByKey.size !== expected.size || [...expected].some(([key, value]) => entriesByKey.get(key) !== value)) {
    throw new BundleError(`initialiser ${name} lies in ${entries(entriesByKey)}, expected ${entries(expected)}`);
  }
  return true;
}

/** @param {Map<string, string>} said */
function entries(location) {
  const sorted = [...location].sort(([left], [other]) => (left < other ? -1 : 1));
  return sorted.map(([key, value]) => `${quoted(key)} ${quoted(value)}`).join(", ") || "no file";
}

/** The text as one printable line of at most 80 characters, more if escaped. @param {string} words */
function quoted(words) {
  const plain = words.slice(0, 80);
  return /^[^\p{C}\p{Zl}\p{Zp}]+$/u.test(plain) ? plain : `'${JSON.stringify(plain).slice(1, -1)}'`;
}
