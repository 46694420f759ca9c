/**
 * Encodes and decodes tensors as safetensors: the same bytes as Python's for the same tensors, whatever their order.
 *
 * A tensor is {dtype, shape, data}, with numpy's name of the dtype. float16 values are bits in a Uint16Array, bools are
 * in a Uint8Array, 64-bit integers in a BigInt array. Typed arrays are little-endian, as in every browser.
 */
import { concat, text, utf8, view } from "./bytes.js";
import { TensorError, oneLine } from "./errors.js";
import { sizeOf } from "./flat.js";

/** Dtypes in the reverse order of their place in a file. @type {[string, string, any][]} */
const NAMED = [
  ["bool", "BOOL", Uint8Array],
  ["uint8", "U8", Uint8Array],
  ["int8", "I8", Int8Array],
  ["int16", "I16", Int16Array],
  ["uint16", "U16", Uint16Array],
  ["float16", "F16", Uint16Array],
  ["int32", "I32", Int32Array],
  ["uint32", "U32", Uint32Array],
  ["float32", "F32", Float32Array],
  ["float64", "F64", Float64Array],
  ["int64", "I64", BigInt64Array],
  ["uint64", "U64", BigUint64Array],
];
const TYPES = NAMED.map(([dtype, code, array], rank) => ({ dtype, code, array, rank }));
const BY_NAME = new Map(TYPES.map((type) => [type.dtype, type]));
const BY_CODE = new Map(TYPES.map((type) => [type.code, type]));
const ALIGNMENT = 8;

/** Compares texts by code points, as Python and Rust do. */
function compared(first, other) {
  const [left, right] = [[...first], [...other]];
  const at = left.findIndex((letter, place) => letter !== right[place]);
  if (at < 0) return left.length - right.length;
  return right[at] === undefined ? 1 : left[at].codePointAt(0) - right[at].codePointAt(0);
}

/**
 * The tensors as safetensors. Throws TensorError for a dtype that safetensors has no name for, or a wrong size.
 * @param {import("./flat.js").Tensors} tensors @returns {Uint8Array<ArrayBuffer>}
 */
export function write(tensors) {
  const entries = [...tensors].map(([name, tensor]) => ({ name, tensor, type: typeOf(name, tensor) }));
  entries.sort((left, other) => other.type.rank - left.type.rank || compared(left.name, other.name));
  let end = 0;
  const header = entries.map(({ name, tensor, type }) => {
    const begin = end;
    end += tensor.data.byteLength;
    const info = { dtype: type.code, shape: [...tensor.shape], data_offsets: [begin, end] };
    return `${JSON.stringify(name)}:${JSON.stringify(info)}`;
  });
  const words = utf8(`{${header.join(",")}}`); // JSON of an object would put names of digits first
  const head = new Uint8Array(8 + Math.ceil(words.length / ALIGNMENT) * ALIGNMENT).fill(0x20);
  view(head).setBigUint64(0, BigInt(head.length - 8), true);
  head.set(words, 8);
  const parts = entries.map(({ tensor: { data } }) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return concat([head, ...parts]);
}

function typeOf(name, { dtype, shape, data }) {
  const type = BY_NAME.get(dtype);
  if (!type || !(data instanceof type.array)) throw new TensorError(`${name} is ${dtype}, which cannot be encoded`);
  if (data.length !== sizeOf(shape)) {
    throw new TensorError(`${name} has ${data.length} values, expected ${sizeOf(shape)}`);
  }
  return type;
}

/**
 * The tensors in `bytes`, in the order of their names; the caller owns the arrays. Throws TensorError, and nothing
 * else, for bytes that are not safetensors of numpy's dtypes.
 * @param {Uint8Array} bytes @returns {import("./flat.js").Tensors}
 */
export function read(bytes) {
  try {
    const { header, begin } = headerOf(bytes);
    const entries = Object.entries(header).filter(([name]) => name !== "__metadata__");
    const tensors = entries.map(([name, info]) => [name, info, rangeOf(name, info)]);
    checkRanges(tensors.map(([, , range]) => range), bytes.length - begin);
    tensors.sort(([left], [other]) => compared(left, other));
    return new Map(tensors.map(([name, info, range]) => [name, tensorOf(info, range, bytes, begin)]));
  } catch (error) {
    throw new TensorError(`${bytes.length} bytes are not safetensors: ${oneLine(error)}`);
  }
}

function headerOf(bytes) {
  if (bytes.length < 8) throw new TensorError("the header is too short");
  const size = Number(view(bytes).getBigUint64(0, true));
  if (size > bytes.length - 8) throw new TensorError(`the header has ${size} bytes, there are ${bytes.length - 8}`);
  const header = JSON.parse(text(bytes.subarray(8, 8 + size)));
  if (header === null || typeof header !== "object" || Array.isArray(header)) {
    throw new TensorError("the header is no object");
  }
  return { header, begin: 8 + size };
}

/** The place of a tensor among the values, in bytes. */
function rangeOf(name, info) {
  const type = BY_CODE.get(info?.dtype);
  if (!type) throw new TensorError(`${name} is ${JSON.stringify(info?.dtype)}`);
  const { shape, data_offsets: offsets } = info;
  const counts = (list) => Array.isArray(list) && list.every((number) => Number.isSafeInteger(number) && number >= 0);
  if (!counts(shape) || !counts(offsets) || offsets.length !== 2) throw new TensorError(`${name} has no shape and place`);
  const [begin, end] = offsets;
  const size = sizeOf(shape) * type.array.BYTES_PER_ELEMENT;
  if (end - begin !== size) throw new TensorError(`${name} has ${end - begin} bytes, expected ${size}`);
  return { begin, end };
}

/** Checks that the tensors follow each other without gaps, from the first byte to the last. */
function checkRanges(ranges, size) {
  let at = 0;
  for (const { begin, end } of [...ranges].sort((left, other) => left.begin - other.begin || left.end - other.end)) {
    if (begin !== at) throw new TensorError(`values begin at byte ${begin}, expected ${at}`);
    at = end;
  }
  if (at !== size) throw new TensorError(`there are ${size} bytes of values, expected ${at}`);
}

function tensorOf({ dtype: code, shape }, { begin, end }, bytes, start) {
  const { dtype, array } = BY_CODE.get(code);
  const own = Uint8Array.prototype.slice.call(bytes, start + begin, start + end);
  return { dtype, shape: Object.freeze([...shape]), data: new array(own.buffer) };
}
