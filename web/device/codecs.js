/**
 * How the tensors of an update become bytes, as strategies/codecs: `named("delta+int8+deflate")`. The empty word is
 * safetensors as they are.
 */
import * as deflate from "./codecs/deflate.js";
import * as delta from "./codecs/delta.js";
import { half, int8 } from "./codecs/numbers.js";
import { CodecError } from "./errors.js";
import { write } from "./safetensors.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./flat.js").Tensor} Tensor */

const NUMBERS = { half, int8 };
/** Running statistics of a normalisation stand as they are. */
const STATISTICS = [".running_mean", ".running_var"];
/** What it takes for a tensor beside its values, usually. */
const NAME_BYTES = 72;
/** What deflate leaves of an update's bytes, by what is written before, for predictions (docs/wire.md). */
const PACKED = {
  "": 0.93,
  delta: 0.77,
  half: 0.93,
  "delta+half": 0.9,
  int8: 0.9,
  "delta+int8": 0.87,
};

/** Of the words "delta", then "half" or "int8", then "deflate", any of them, joined by "+". Throws CodecError. */
export function named(/** @type {string} */ word) {
  const rest = word ? word.split("+") : [];
  const isDelta = rest[0] === delta.NAME && Boolean(rest.shift());
  const numbers = Object.hasOwn(NUMBERS, rest[0] ?? "") ? NUMBERS[rest.shift()] : null;
  const isPacked = rest[0] === deflate.NAME && Boolean(rest.shift());
  if (rest.length) {
    throw new CodecError(
      `no codec is called '${word}': expected some of ${delta.NAME}, then ${Object.keys(NUMBERS).join(" or ")}, ` +
        `then ${deflate.NAME}, as in "delta+int8+deflate"`,
    );
  }
  return new Chain({ isDelta, numbers, isPacked });
}

/**
 * The float32 parameters that the base has in the same shape are written short; all else is as it is. A tensor that
 * cannot be written short, because a number of it would overflow, or is too small for it to pay, is as it is too,
 * with what was left out before.
 */
class Chain {
  #isDelta;
  #numbers;
  #isPacked;

  constructor({ isDelta, numbers, isPacked }) {
    this.#isDelta = isDelta;
    this.#numbers = numbers;
    this.#isPacked = isPacked;
  }

  /** Whether a device must keep what rounding leaves out. */
  get lossy() {
    return this.#numbers !== null;
  }

  /**
   * `base` is what was trained from, `left` what the last encoding left out: it is added to this update (error
   * feedback; Seide et al. 2014; Karimireddy et al. 2019, algorithm 1). `body` is sent; `left` is kept for the next
   * update, in place of what was kept before, once this one counts; null: nothing is ever left out.
   * @param {Tensors} update @param {Tensors} base @param {Tensors} left
   * @returns {Promise<{ body: Uint8Array, left: Tensors | null }>} Rejects with TensorError.
   */
  async encode(update, base, left) {
    const { wire, rests } = this.#written(update, base, left);
    const plain = write(wire);
    return { body: this.#isPacked ? await deflate.pack(plain) : plain, left: this.lossy ? rests : null };
  }

  /** Predicted: of float32 parameters, and `exact` values of 32 bits besides, in `count` tensors. */
  payloadBytes(/** @type {number} */ values, /** @type {number} */ count, exact = 0) {
    const arrays = count * (1 + (this.#numbers?.beside ?? 0));
    const plain = (this.#numbers ? this.#numbers.size(values) : 4 * values) + 4 * exact + NAME_BYTES * arrays;
    const before = [this.#isDelta ? delta.NAME : "", this.#numbers?.name ?? ""].filter(Boolean).join("+");
    return Math.ceil(this.#isPacked ? plain * PACKED[before] : plain);
  }

  /** The tensors of the wire, and what is left out of them; of tensors that are not in this update it is still. */
  #written(update, base, left) {
    const wire = new Map();
    const rests = new Map([...left].filter(([name]) => !update.has(name)));
    for (const [name, tensor] of update) {
      const old = this.#baseOf(name, tensor, base);
      const { parts, rest } = old ? this.#short(tensor, old, left.get(name)) : { parts: { "": tensor }, rest: null };
      for (const [part, one] of Object.entries(parts)) wire.set(part ? `${name}/${part}` : name, one);
      if (rest) rests.set(name, rest);
    }
    return { wire, rests };
  }

  /** What a tensor is written against, if it is to be written short. @returns {Tensor | null} */
  #baseOf(name, tensor, base) {
    const old = base.get(name);
    if (!(this.#isDelta || this.#numbers) || STATISTICS.some((end) => name.endsWith(end)) || !old) return null;
    const alike = [old, tensor].every((one) => one.dtype === "float32") && sameShape(old, tensor);
    return alike && tensor.data.length ? old : null;
  }

  /** Its parts, and what is left out of them, if anything. */
  #short(tensor, base, left) {
    const { shape, data: values } = tensor;
    if (!this.#numbers) return { parts: delta.write(values, base.data, shape), rest: null };
    const before = left && sameShape(left, tensor) ? left.data : null;
    const whole = before ? sum(values, before) : values;
    const asItIs = (data, rest) => ({ parts: { "": float32(shape, data) }, rest: rest && float32(shape, rest) });
    if (!finite(whole)) return asItIs(values, before);
    const change = this.#isDelta ? difference(whole, base.data) : whole;
    const parts = finite(change) ? this.#numbers.write(change, shape) : null;
    if (parts) {
      const read = this.#isDelta ? sum(base.data, this.#numbers.read(change)) : this.#numbers.read(change);
      if (finite(read)) return { parts, rest: float32(shape, difference(whole, read)) };
    }
    return asItIs(whole, before && new Float32Array(whole.length));
  }
}

const float32 = (shape, data) => ({ dtype: "float32", shape: [...shape], data });
const sameShape = (one, other) => one.shape.join() === other.shape.join();
/** Each rounded to float32, as numpy does. */
const sum = (one, other) => one.map((value, at) => value + other[at]);
const difference = (one, other) => one.map((value, at) => value - other[at]);
const finite = (values) => values.every(Number.isFinite);
