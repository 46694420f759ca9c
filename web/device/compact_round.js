/**
 * A round of scalars in few bytes, as broker/wire/compact_round.py: the next one for who has the offer of this one, and a
 * device's answer. Neither is a MessagePack array, by whose first byte those are told.
 */
import { concat, equal, view } from "./bytes.js";
import { UnknownRoundBefore, MessageError } from "./errors.js";
import { CHECK_BYTES, Contribution, VERSION, encode } from "./messages.js";
import { whole } from "./rounding.js";
import { count, decodeStretches, joined, packed, roundSeed } from "./step_log.js";

export { isNext } from "./packets.js";

const WITH_WORD = 0x10;
const OVER = 0x20;
const STRETCHES = 0x40;
export const WORD_BYTES = 8;
const MOST_ROUNDS = 2 ** 35;
/** Of a whole contribution that others are like: beside more, what is left out does not matter. */
export const MOST_BYTES = 2048;
/** Steps that who follows has at hand, for when it comes to work again. */
const FOLLOWED = 128;
const METRICS_BYTES = 8;

/**
 * @typedef {{ round: number, check: Uint8Array, over: boolean, scalars: number[], steps: any[] }} Next
 *   Round `round` is open, and nothing else has changed but that the base has moved by steps. `check`: the first
 *   CHECK_BYTES of the hash of the new base. `steps`: stretches of those of the round before; or only `scalars`, of
 *   one step in all else like the one before it. `over`: what was made for the round before and has no receipt
 *   does not count any more.
 */

/** With the word (see session_mac.js) on `payload` behind it. @param {Uint8Array} payload @param {Uint8Array} word */
export const withWord = (payload, word) => concat([Uint8Array.of(payload[0] | WITH_WORD), payload.subarray(1), word]);

/** What the word (see session_mac.js) is on, and the word; empty where there is none. @param {Uint8Array} payload */
export function parted(payload) {
  if (!(payload[0] & WITH_WORD)) return { said: payload, word: new Uint8Array() };
  const said = concat([Uint8Array.of(payload[0] & ~WITH_WORD), payload.slice(1, -WORD_BYTES)]);
  return { said, word: payload.slice(-WORD_BYTES) };
}

/** Of what `parted` gives as said. Throws MessageError. @returns {Next} */
export function decodeNext(payload) {
  const { round, rest } = headed(payload, "next round");
  const check = rest.slice(0, CHECK_BYTES);
  const numbers = rest.subarray(CHECK_BYTES);
  const over = Boolean(payload[0] & OVER);
  if (check.length < CHECK_BYTES) throw new MessageError(`not a next round: ${payload.length} bytes`);
  if (payload[0] & STRETCHES) {
    return { round, check, over, scalars: [], steps: decodeStretches(numbers, "next round") };
  }
  if (numbers.length % 4) throw new MessageError(`not a next round: ${numbers.length} bytes are no scalars`);
  const from = view(numbers);
  const scalars = Array.from({ length: numbers.length / 4 }, (_, at) => from.getFloat32(4 * at, true));
  return { round, check, over, scalars, steps: [] };
}

/** The offer that it stands for, to who has the one before. Rejects with UnknownRoundBefore, MessageError. */
export async function following(before, /** @type {Next} */ made) {
  const open = `round ${made.round} of '${before.task}'`;
  if (before.done || before.round < 1 || made.round !== before.round + 1) {
    throw new UnknownRoundBefore(`${open} is open; round ${before.round} is known here`);
  }
  const { base } = before;
  const added = made.scalars.length ? [await scalarsOnly(before, made.scalars, open)] : made.steps;
  const tail = joined(base.tail, added, FOLLOWED);
  const seeds = tail.at(-1)?.seeds;
  if (typeof seeds !== "bigint") throw new UnknownRoundBefore(`${open}: its seed is not known here`);
  const steps = count(added);
  return Object.freeze({
    ...before,
    round: made.round,
    seed: await roundSeed(seeds, made.round),
    remaining_s: before.deadline_s,
    base: { ...base, sha: made.check, steps: base.steps + steps, at: base.at + steps, tail, log: [] },
  });
}

/** A step of the round before, in all but its scalars like the last one in the tail. */
async function scalarsOnly({ round, seed, base }, scalars, open) {
  const like = base.tail.at(-1);
  if (!like) throw new UnknownRoundBefore(`${open}: the previous step is not known here`);
  const { generator, tunable, lr, seeds } = like;
  const step = { round, generator, seed, tunable, lr, share: 1, scalars };
  return packed(step, typeof seeds === "bigint" ? seeds : null);
}

/** A contribution in few bytes for who has received `like`; null where that is not possible. */
export function shortOf(message, like) {
  const { train_loss: loss, train_time_ms: time, energy_mj: energy } = message.metrics;
  const head = headOf(like.body);
  const isTooLarge = Number.isFinite(loss) && !Number.isFinite(Math.fround(loss));
  const starts = equal(message.body.subarray(0, head.length), head);
  if (isTooLarge || !head.length || !starts || message.round >= MOST_ROUNDS) return null;
  const metrics = new Uint8Array(METRICS_BYTES);
  view(metrics).setFloat32(0, loss, true);
  view(metrics).setUint16(4, rounded(time), true);
  view(metrics).setUint16(6, rounded(energy), true);
  const first = Uint8Array.of(VERSION & 0x0f);
  const like8 = Uint8Array.of(like.seq & 0xff);
  const short = concat([first, numbered(message.round), like8, metrics, message.body.subarray(head.length)]);
  return isSame(longOf(short, like), message) ? short : null;
}

/** The contribution that it stands for; `seq` is 0. Throws MessageError. */
export function longOf(payload, like) {
  const { round, rest } = headed(payload, "short contribution");
  if (rest.length < 1 + METRICS_BYTES || rest[0] !== (like.seq & 0xff)) {
    throw new MessageError("a short contribution that is not like the one that is known");
  }
  const from = view(rest);
  const metrics = {
    ...like.metrics,
    train_loss: from.getFloat32(1, true),
    train_time_ms: whole(numberOf(from.getUint16(5, true))),
    energy_mj: whole(numberOf(from.getUint16(7, true))),
  };
  if (!Number.isFinite(metrics.train_time_ms) || !Number.isFinite(metrics.energy_mj)) {
    throw new MessageError("not a short contribution: its time or energy is no number");
  }
  return { ...like, round, seq: 0, metrics, body: concat([headOf(like.body), rest.subarray(1 + METRICS_BYTES)]) };
}

/** But for the name of the sending, and for metrics that are rounded or as in the one before. */
function isSame(read, message) {
  const told = { train_loss: 0, train_time_ms: 0, energy_mj: 0, peak_memory_kib: 0 };
  const plain = (one) => encode(Contribution, { ...one, seq: 0, metrics: { ...one.metrics, ...told } });
  return equal(plain(read), plain(message));
}

/** Of safetensors: their names, types and shapes; empty where it is none. */
function headOf(body) {
  const size = body.length < 8 ? Infinity : 8 + Number(view(body).getBigUint64(0, true));
  return size <= body.length ? body.subarray(0, size) : new Uint8Array();
}

/** The upper half of a binary32, rounded: 8 bits of the number. */
function rounded(value) {
  const word = new DataView(new ArrayBuffer(4));
  word.setFloat32(0, value);
  const bits = word.getUint32(0);
  if (Number.isNaN(value)) return bits >>> 16;
  return Math.min(0xff80, Math.floor((bits + 0x8000) / 0x10000));
}

function numberOf(half) {
  const word = new DataView(new ArrayBuffer(4));
  word.setUint16(0, half);
  return word.getFloat32(0);
}

/** 7 bits a byte, the lowest first; the highest bit of a byte says that another follows. */
function numbered(value) {
  const made = [];
  let rest = value;
  for (; rest > 0x7f; rest = Math.floor(rest / 128)) made.push((rest % 128) | 0x80);
  return Uint8Array.from([...made, rest]);
}

/** The round, and what follows it. */
function headed(payload, what) {
  if (!payload.length || (payload[0] & 0x0f) !== VERSION || payload[0] & (0x80 | WITH_WORD)) {
    throw new MessageError(`not a ${what} of protocol version ${VERSION}`);
  }
  let round = 0;
  for (let place = 0; place < 5 && 1 + place < payload.length; place += 1) {
    const byte = payload[1 + place];
    round += (byte & 0x7f) * 128 ** place;
    if (byte < 0x80) return { round, rest: payload.slice(2 + place) };
  }
  throw new MessageError(`not a ${what}: its round has no end`);
}
