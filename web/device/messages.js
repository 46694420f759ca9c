/**
 * The message types of the protocol, encoded as MessagePack arrays, without field names (broker/wire/messages.py, which
 * explains the fields).
 *
 * Every message begins with the protocol version, which is not a field of the object here. Tensors are not part of a
 * message's own encoding: `body` is safetensors, and a body over INLINE_LIMIT is named by its Blob and pulled in
 * blocks.
 */
import { Decoder, encode as pack } from "../vendor/msgpack/index.mjs";
import { hex, text } from "./bytes.js";
import { MessageError, oneLine } from "./errors.js";
import { anything, big, bool, bytes, float, int, listOf, oneOf, orBytes, orNull, str, struct } from "./fields.js";

export const VERSION = 4;
/** Bytes. A larger body is not sent inside a message but pulled in blocks. */
export const INLINE_LIMIT = 64 * 1024;
/** Bytes. No control message is larger; a larger payload is refused before it is parsed. */
export const MESSAGE_LIMIT = 256 * 1024;
/** Bytes of a sha256: the fewest that check a base, and those that name a line of steps. */
export const CHECK_BYTES = 4;
export const LINE_BYTES = 8;

const NOTHING = new Uint8Array();
const BOOT = big(0n, 2n ** 63n - 1n);

/** The name of some bytes: `sha` is their sha256 in 32 raw bytes, `size` is in bytes. */
export const Blob = struct([["sha", bytes()], ["size", int()]], (blob, where) => {
  if (blob.sha?.length !== 32) throw new MessageError(`${where}: a sha256 has 32 bytes, not ${blob.sha?.length}`);
  if (!(blob.size >= 0 && blob.size < 2 ** 40)) {
    throw new MessageError(`${where}: a blob of ${blob.size} bytes is not possible`);
  }
  return blob;
});

/** A kind of update that the round accepts: its name, and its hyperparameters as MessagePack decodes them. */
export const Kind = struct([["name", str()], ["settings", anything]]);

/** Steps of consecutive rounds, see step_log.js. `seeds`: the task's seed as bigint, or 8 bytes for each step. */
export const Stretch = struct([
  ["round", int()],
  ["generator", str()],
  ["tunable", str()],
  ["lr", float],
  ["width", int()],
  ["form", oneOf("i1", "f2", "f4", "f8")],
  ["scalars", bytes()],
  ["seeds", orBytes(big())],
  ["shares", bytes(), NOTHING],
]);

/** The base model of a round: a checkpoint, and the steps taken since. If `line` is empty, it begins at this base. */
export const Base = struct(
  [
    ["checkpoint", listOf(Blob)],
    ["sha", bytes()],
    ["line", bytes(), NOTHING],
    ["steps", int(), 0],
    ["at", int(), 0],
    ["tail", listOf(Stretch), Object.freeze([])],
    ["log", listOf(Blob), Object.freeze([])],
  ],
  (base) => (base.line?.length ? base : { ...base, line: base.sha?.slice(0, LINE_BYTES) }),
);

/** A smaller model of the task's family, which some kinds of update train. */
export const Member = struct([["name", str()], ["bundle", Blob], ["base", Base]]);

/** A mask helper: its name at the broker, and its public key (X25519). */
export const HelperKey = struct([["name", str()], ["key", bytes(32, 32)]]);

/** How devices mask their updates in a round, see masking/. */
export const Masks = struct([
  ["helpers", listOf(HelperKey, 3, 1)],
  ["min_group", int(1, 2 ** 20)],
  ["capacity", int(1, 2 ** 20)],
  ["most_weight", int(1, 2 ** 40)],
  ["noise_milli", int(0, 2 ** 40), 0],
  ["clip_milli", int(0, 2 ** 40), 0],
  ["alone", listOf(str(), 16), Object.freeze([])],
]);

/** The seeds of a masked update: the device's public key for it, and a tag for each helper, in order. */
export const Mask = struct([["key", bytes(32, 32)], ["tags", listOf(bytes(16, 16), 3)]]);

/** The loss and the cost of one update; all but `train_loss` are whole numbers. */
export const Metrics = struct([
  ["train_loss", float],
  ["train_time_ms", int()],
  ["energy_mj", int()],
  ["peak_memory_kib", int()],
  ["epsilon_milli", int(), 0],
  ["energy_source", str(32), ""],
  ["energy_off_percent", int(0, 100), 0],
]);

/** A message, which begins with the protocol version; `name` is for errors. */
const message = (name, fields, whole) => ({ name, ...struct([["v", int()], ...fields], whole) });

export const State = message("State", [
  ["boot", BOOT],
  ["online", bool],
  ["leaving", bool, false],
  ["paused", bool, false],
]);
export const Hello = message("Hello", [
  ["boot", BOOT],
  ["num_examples", int()],
  ["profile", str()],
  ["memory_bytes", int()],
  ["engine", str()],
  ["battery_percent", int(), -1],
  ["task", str(), ""],
  ["key", bytes(32), NOTHING],
  ["tags", listOf(str(64), 16), Object.freeze([])],
  ["version", str(32), ""],
]);
/** How much the aggregator lacks of each class, in percent, a byte for each label. */
export const Shortages = struct([
  ["statistics", bytes()],
  ["training", bytes()],
]);
export const Offer = message("Offer", [
  ["task", str()],
  ["run", str()],
  ["round", int()],
  ["seed", big()],
  ["deadline_s", float],
  ["remaining_s", float],
  ["bundle", Blob],
  ["base", Base],
  ["kinds", listOf(Kind)],
  ["done", bool, false],
  ["family", listOf(Member), Object.freeze([])],
  ["aside", orNull(Blob), null],
  ["rare", listOf(int(0, 2 ** 16 - 1), 16), Object.freeze([])],
  ["masks", orNull(Masks), null],
  ["shortages", orNull(Shortages), null],
  ["version", str(32), ""],
  ["title", str(64), ""],
  ["about", str(200), ""],
  ["ask", str(200), ""],
], (offer, where) => {
  if (new Set(offer.rare).size < offer.rare.length) {
    throw new MessageError(`${where}.rare is ${offer.rare.join(", ")}: each is named once`);
  }
  return offer;
});
/** An aggregator's change of key, signed by the old key; `made` in seconds since 1970. */
export const Succession = struct([
  ["old", bytes()],
  ["new", bytes()],
  ["made", int(0, 2 ** 40 - 1)],
  ["signature", bytes()],
]);
/**
 * An encoded Offer with the aggregator's signature. `issued` is in seconds since 1970; `successions` lead from earlier
 * keys to the one that signed this, the oldest first.
 */
export const Signed = message("Signed", [
  ["issued", int(0, 2 ** 40 - 1)],
  ["signature", bytes()],
  ["offer", bytes()],
  ["successions", listOf(Succession, 16), Object.freeze([])],
]);
/** A message of a device that has a key, with its signature: an encoded Hello, Plan or Contribution. */
export const FromDevice = message("FromDevice", [["signature", bytes()], ["message", bytes()]]);
export const Plan = message("Plan", [
  ["task", str()],
  ["round", int()],
  ["kind", str()],
  ["seconds", float],
  ["memory_bytes", int()],
  ["energy_j", float],
  ["reasons", listOf(str())],
]);
export const Contribution = message("Contribution", [
  ["task", str()],
  ["run", str()],
  ["round", int()],
  ["boot", BOOT],
  ["seq", int()],
  ["kind", str()],
  ["num_examples", int()],
  ["metrics", Metrics],
  ["body", bytes(), NOTHING],
  ["blob", orNull(Blob), null],
  ["form", str(), ""],
  ["mask", orNull(Mask), null],
]);
export const Receipt = message("Receipt", [
  ["boot", big()],
  ["seq", int()],
  ["round", int()],
  ["status", oneOf("accepted", "duplicate", "late", "refused")],
  ["reason", str(), ""],
  ["retry_after_s", int(0, 86_400), 0],
]);
export const Get = message("Get", [["blob", Blob], ["blocks", listOf(int())]]);

/** The payload of a message. Throws MessageError for an object that is no such message. @returns {Uint8Array} */
export function encode(kind, object) {
  return packed(kind, { v: VERSION, ...object }, kind.name);
}

/** Reads a payload as a message of this kind. Throws MessageError with what is wrong and where. */
export function decode(kind, payload) {
  if (payload.length > MESSAGE_LIMIT) {
    throw new MessageError(`${kind.name} of ${payload.length} bytes; at most ${MESSAGE_LIMIT} are read`);
  }
  const { v, ...object } = unpacked(kind, payload, kind.name);
  if (v !== VERSION) {
    throw new MessageError(`${kind.name} of protocol version ${v}; this side speaks ${VERSION}`);
  }
  return Object.freeze(object);
}

/**
 * Also checks that texts are UTF-8, and that arrays claim no more items than there are bytes: the library accepts any
 * bytes as text, and allocates arrays before it has read their items.
 */
class Strict extends Decoder {
  #left;

  /** @param {number} size of what is decoded, in bytes */
  constructor(size) {
    super({ useBigInt64: true });
    this.#left = size;
  }

  pushArrayState(size) {
    this.#take(size);
    super.pushArrayState(size);
  }

  pushMapState(size) {
    this.#take(2 * size);
    super.pushMapState(size);
  }

  decodeUtf8String(size, headerOffset) {
    const begin = this.pos + headerOffset;
    text(this.bytes.subarray(begin, begin + size));
    return super.decodeUtf8String(size, headerOffset);
  }

  #take(items) {
    this.#left -= items;
    if (this.#left < 0) throw new RangeError("it claims to have more items than it has bytes");
  }
}

/** A value of one of these types in bytes; `name` is for errors. */
export function packed(type, value, name) {
  return pack(type.write(value, name), { useBigInt64: true });
}

/** Reads bytes as a value of one of these types. Throws MessageError. */
export function unpacked(type, data, name) {
  let value;
  try {
    value = new Strict(data.length).decode(data);
  } catch (error) {
    throw new MessageError(`not a ${name}: ${oneLine(error)}`);
  }
  try {
    return type.read(value, name);
  } catch (error) {
    throw error instanceof MessageError ? new MessageError(`not a ${name}: ${error.message}`) : error;
  }
}

/** The offer in a payload, signed or not; a signature is not checked. Throws MessageError. */
export function offerIn(payload) {
  let inside = payload;
  try {
    inside = decode(Signed, payload).offer;
  } catch (error) {
    if (!(error instanceof MessageError)) throw error; // an unsigned offer, or an invalid payload: `decode` tells
  }
  return decode(Offer, inside);
}

/** The name of a blob, 64 hex digits. */
export const hexOf = (blob) => hex(blob.sha);
/** Whether two blobs are the same. */
export const same = (left, other) => left.size === other.size && hexOf(left) === hexOf(other);
/** Whether all that leads to a base is named; not after compact offers (see compact_round.js). */
export const isWhole = (base) => base.sha.length === 32;
