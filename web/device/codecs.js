/**
 * Composes codecs from words, as in `codecNamed("delta+int8+deflate")`, and encodes updates with them
 * (strategies/codecs/chain.py).
 */
import * as deflate from "./codecs/deflate.js";
import * as delta from "./codecs/delta.js";
import { half, int8 } from "./codecs/numbers.js";
import { CodecError } from "./errors.js";
import { write } from "./safetensors.js";

/** @typedef {import("./flat.js").Tensors} Tensors */
/** @typedef {import("./flat.js").Tensor} Tensor */

const NUMBERS = { half, int8 };
/** Name endings of running statistics of a normalisation, which are sent as they are. */
const STATISTICS = [".running_mean", ".running_var"];
/** Usual header bytes for one tensor. */
const NAME_BYTES = 72;
/** Share of an update's bytes that deflate leaves, by the codec before it; for predictions (docs/wire.md). */
const PACKED = {
  "": 0.93,
  delta: 0.77,
  half: 0.93,
  "delta+half": 0.9,
  int8: 0.9,
  "delta+int8": 0.87,
};

/**
 * The codec of a word: any of "delta", then "half" or "int8", then "deflate", joined by "+". With the empty word,
 * tensors are not changed. Throws CodecError.
 */
export function codecNamed(/** @type {string} */ word) {
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
 * A codec: shortens float32 parameters that the base has in the same shape. Other tensors are not changed. A
 * parameter that cannot be shortened, because a number would overflow, or that is too small to gain anything, is sent
 * as it is, plus what was left out of it before.
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

  /** Whether encoding rounds, so that a device must keep what is left out. */
  get lossy() {
    return this.#numbers !== null;
  }

  /**
   * Encode an update that was trained from `base`; `left`: left out of the last one, and added to this one (error
   * feedback; Seide et al. 2014; Karimireddy et al. 2019, algorithm 1). `body` is sent. Once this update counts, the
   * device keeps the returned `left` for its next update, in place of what it kept before; null: the codec never
   * leaves anything out.
   * @param {Tensors} update @param {Tensors} base @param {Tensors} left
   * @returns {Promise<{ body: Uint8Array, left: Tensors | null }>} Rejects with TensorError.
   */
  async encode(update, base, left) {
    const { wire, rests } = this.#written(update, base, left);
    const plain = write(wire);
    return { body: this.#isPacked ? await deflate.pack(plain) : plain, left: this.lossy ? rests : null };
  }

  /** Predicted bytes of `count` tensors: `values` float32 parameters, `exact` other 32-bit values. */
  payloadBytes(/** @type {number} */ values, /** @type {number} */ count, exact = 0) {
    const arrays = count * (1 + (this.#numbers?.beside ?? 0));
    const plain = (this.#numbers ? this.#numbers.size(values) : 4 * values) + 4 * exact + NAME_BYTES * arrays;
    const before = [this.#isDelta ? delta.NAME : "", this.#numbers?.name ?? ""].filter(Boolean).join("+");
    return Math.ceil(this.#isPacked ? plain * PACKED[before] : plain);
  }

  /** The tensors of the wire, and what is left out of them. What was left out of other tensors stays. */
  #written(update, base, left) {
    const wire = new Map();
    const rests = new Map([...left].filter(([name]) => !update.has(name)));
    for (const [name, tensor] of update) {
      const old = this.#baseOf(name, tensor, base);
      const { parts, rest } = old ? this.#shorten(tensor, old, left.get(name)) : { parts: { "": tensor }, rest: null };
      for (const [part, content] of Object.entries(parts)) wire.set(part ? `${name}/${part}` : name, content);
      if (rest) rests.set(name, rest);
    }
    return { wire, rests };
  }

  /** The base's tensor, if this one is to be shortened; null otherwise. @returns {Tensor | null} */
  #baseOf(name, tensor, base) {
    const old = base.get(name);
    if (!(this.#isDelta || this.#numbers) || STATISTICS.some((end) => name.endsWith(end)) || !old) return null;
    const alike = [old, tensor].every((side) => side.dtype === "float32") && sameShape(old, tensor);
    return alike && tensor.data.length ? old : null;
  }

  /** The parts of a tensor, and what is left out of them, if anything. */
  #shorten(tensor, base, left) {
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
const sameShape = (left, other) => left.shape.join() === other.shape.join();
/** Results are rounded to float32, as in numpy. */
const sum = (left, other) => left.map((value, at) => value + other[at]);
const difference = (left, other) => left.map((value, at) => value - other[at]);
const finite = (values) => values.every(Number.isFinite);
