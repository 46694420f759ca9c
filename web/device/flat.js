/**
 * Named tensors: checks of names, shapes and values, and one flat buffer (models/bundles/tensors.py).
 *
 * @typedef {{name: string, shape: number[], dtype: string, variable?: boolean}} TensorSpec
 *   `variable`: it may have fewer rows than shape[0].
 * @typedef {{dtype: string, shape: number[], data: any}} Tensor data: a typed array, in C order
 * @typedef {Map<string, Tensor>} Tensors
 */

import { TensorError } from "./errors.js";

const NAMED = 4;

/** Number of elements, at most. @param {number[]} shape */
export const sizeOf = (shape) => shape.reduce((product, length) => product * length, 1);

/** A shape as Python writes it. @param {number[]} shape */
export const shapeText = (shape) => (shape.length === 1 ? `(${shape[0]},)` : `(${shape.join(", ")})`);

/** @param {number[]} shape @param {Float32Array} data @returns {Tensor} */
export const float32 = (shape, data) => ({ dtype: "float32", shape, data });

/** Whether no value is infinite or NaN. @param {Tensors} tensors */
export function finite(tensors) {
  return [...tensors.values()].every((tensor) => !strays(tensor));
}

/** How many values are infinite or NaN; integers never are. @param {Tensor} tensor */
function strays({ dtype, data }) {
  let count = 0;
  if (dtype === "float16") for (const bits of data) count += (bits & 0x7c00) === 0x7c00 ? 1 : 0;
  else if (dtype.startsWith("float")) for (const value of data) count += Number.isFinite(value) ? 0 : 1;
  return count;
}

/**
 * Raises TensorError unless `tensors` are exactly `expected`: names, shapes, dtypes, all finite.
 * @param {Tensors} tensors @param {TensorSpec[]} expected
 */
export function check(tensors, expected) {
  const names = expected.map((spec) => spec.name);
  const missing = names.filter((name) => !tensors.has(name)).sort();
  if (missing.length)
    throw new TensorError(`${listed(missing)} missing; got ${listed([...tensors.keys()].sort())}`);
  const expectedNames = new Set(names);
  const extra = [...tensors.keys()].filter((name) => !expectedNames.has(name)).sort();
  if (extra.length) throw new TensorError(`${listed(extra)} not expected; expected ${listed(names.sort())}`);
  for (const spec of expected) checkOne(spec, /** @type {Tensor} */ (tensors.get(spec.name)));
}

/** @param {TensorSpec} spec @param {Tensor} tensor */
function checkOne(spec, tensor) {
  const { name, dtype } = spec;
  if (!fits(spec, tensor.shape)) {
    const most = spec.variable ? "at most " : "";
    throw new TensorError(`${name} is ${shapeText(tensor.shape)}, expected ${most}${shapeText(spec.shape)}`);
  }
  if (tensor.dtype !== dtype) throw new TensorError(`${name} is ${tensor.dtype}, expected ${dtype}`);
  if (tensor.data.length !== sizeOf(tensor.shape)) {
    throw new TensorError(`${name} has ${tensor.data.length} values, expected ${sizeOf(tensor.shape)}`);
  }
  const count = strays(tensor);
  if (count) throw new TensorError(`${name} has ${count} non-finite value${count > 1 ? "s" : ""}`);
}

/** @param {TensorSpec} spec @param {number[]} shape */
function fits(spec, shape) {
  if (shape.length !== spec.shape.length) return false;
  const from = spec.variable ? 1 : 0;
  return shape.every((length, axis) =>
    axis < from ? length <= spec.shape[axis] : length === spec.shape[axis],
  );
}

/** @param {string[]} names */
function listed(names) {
  if (!names.length) return "none";
  const more = names.length > NAMED ? ` and ${names.length - NAMED} more` : "";
  return names.slice(0, NAMED).join(", ") + more;
}

/**
 * Named float32 tensors in one buffer, in the order of `specs`, without padding. `views` have the shapes of the
 * specs and share the memory of `vector`; neither is ever reallocated.
 */
export class Flat {
  /** Starts with zeros. Raises TensorError for another dtype or a name given twice. @param {TensorSpec[]} specs */
  constructor(specs) {
    const other = specs.find((spec) => spec.dtype !== "float32");
    if (other) throw new TensorError(`${other.name} is ${other.dtype}, a flat buffer holds float32 only`);
    if (new Set(specs.map((spec) => spec.name)).size !== specs.length) {
      throw new TensorError(`a name occurs twice among ${listed(specs.map((spec) => spec.name))}`);
    }
    this.specs = specs;
    this.vector = new Float32Array(specs.reduce((sum, spec) => sum + sizeOf(spec.shape), 0));
    /** @type {Tensors} */
    this.views = new Map();
    let start = 0;
    for (const { name, shape } of specs) {
      const end = start + sizeOf(shape);
      this.views.set(name, float32(shape, this.vector.subarray(start, end)));
      start = end;
    }
  }

  /**
   * Copies the tensors in, ignoring names that are not in `specs`. Raises TensorError for a tensor that is missing or
   * does not fit. @param {Tensors} tensors
   */
  load(tensors) {
    const own = new Map([...tensors].filter(([name]) => this.views.has(name)));
    check(own, this.specs);
    for (const [name, view] of this.views) view.data.set(own.get(name)?.data);
  }

  /**
   * Copies in only elements `begin` to `begin` + `size`, or to the end, and returns that slice. `tensors` must have
   * the shapes of `specs`; that is not checked.
   * @param {Tensors} tensors
   * @param {number} begin
   * @param {number} size
   */
  loadPart(tensors, begin, size) {
    const part = this.vector.subarray(begin, begin + size);
    const end = begin + part.length;
    let start = 0;
    for (const { name, shape } of this.specs) {
      const stop = start + sizeOf(shape);
      const [low, high] = [Math.max(begin, start), Math.min(end, stop)];
      if (low < high) this.vector.set(tensors.get(name)?.data.subarray(low - start, high - start), low);
      start = stop;
    }
    return part;
  }

  /** A copy of every tensor. @returns {Tensors} */
  tensors() {
    return new Map([...this.views].map(([name, { shape, data }]) => [name, float32(shape, data.slice())]));
  }
}
