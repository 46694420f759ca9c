/**
 * Compact encoding of zeroth-order rounds: the offer of the next round, and a device's contribution
 * (broker/wire/compact_round.py). A compact offer goes to devices that have the offer of the round before; a compact
 * contribution goes to an aggregator that has a similar one from the device. Full messages are MessagePack arrays, and
 * their first byte tells them from compact ones.
 */
import { concat, equal, view } from "./bytes.js";
import { MessageError, UnknownRoundBefore } from "./errors.js";
import { CHECK_BYTES, Contribution, VERSION, encode } from "./messages.js";
import { whole } from "./rounding.js";
import { count, decodeStretches, lastOfBoth, packStep, roundSeed } from "./step_log.js";

export { isCompactOffer } from "./packets.js";

const WITH_MAC = 0x10;
const OVER = 0x20;
const STRETCHES = 0x40;
export const MAC_BYTES = 8;
const MOST_ROUNDS = 2 ** 35;
/** The largest full contribution that has compact forms; in a larger one the saving does not matter. */
export const MOST_BYTES = 2048;
/** Steps that a device keeps while it follows compact offers, to replay when it works again. */
const FOLLOWED_STEPS = 128;
const METRICS_BYTES = 8;

/**
 * @typedef {{ round: number, check: Uint8Array, over: boolean, scalars: number[], steps: any[] }} CompactOffer
 *   The compact offer of round `round`: nothing has changed but the round and, by steps, the base. `check`: the first
 *   CHECK_BYTES of the hash of the new base. `steps`: the steps of the round before, as stretches; or only the
 *   `scalars` of one step, which is otherwise like the step before it. `over`: contributions to the round before that
 *   have no receipt do not count any more.
 */

/** The payload with its MAC (see session_mac.js) appended. @param {Uint8Array} payload @param {Uint8Array} mac */
export const withMac = (payload, mac) => concat([Uint8Array.of(payload[0] | WITH_MAC), payload.subarray(1), mac]);

/** The payload without its MAC (session_mac.js), and the MAC; empty if there is none. @param {Uint8Array} payload */
export function splitMac(payload) {
  if (!(payload[0] & WITH_MAC)) return { content: payload, mac: new Uint8Array() };
  const content = concat([Uint8Array.of(payload[0] & ~WITH_MAC), payload.slice(1, -MAC_BYTES)]);
  return { content, mac: payload.slice(-MAC_BYTES) };
}

/** Read a compact offer that has no MAC (see `splitMac`). Throws MessageError. @returns {CompactOffer} */
export function decodeOffer(payload) {
  const { round, rest } = splitHeader(payload, "next round");
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

/** The full offer, from the offer before and a compact one. Rejects with UnknownRoundBefore, MessageError. */
export async function fullOffer(before, /** @type {CompactOffer} */ compact) {
  const open = `round ${compact.round} of '${before.task}'`;
  if (before.done || before.round < 1 || compact.round !== before.round + 1) {
    throw new UnknownRoundBefore(`${open} is open; round ${before.round} is known here`);
  }
  const { base } = before;
  const added = compact.scalars.length ? [await scalarsOnly(before, compact.scalars, open)] : compact.steps;
  const tail = lastOfBoth(base.tail, added, FOLLOWED_STEPS);
  const seeds = tail.at(-1)?.seeds;
  if (typeof seeds !== "bigint") throw new UnknownRoundBefore(`${open}: its seed is not known here`);
  const steps = count(added);
  return Object.freeze({
    ...before,
    round: compact.round,
    seed: await roundSeed(seeds, compact.round),
    remaining_s: before.deadline_s,
    base: { ...base, sha: compact.check, steps: base.steps + steps, at: base.at + steps, tail, log: [] },
  });
}

/** The step of the round before, which is like the last one in the tail but for its scalars. */
async function scalarsOnly({ round, seed, base }, scalars, open) {
  const like = base.tail.at(-1);
  if (!like) throw new UnknownRoundBefore(`${open}: the previous step is not known here`);
  const { generator, tunable, lr, seeds } = like;
  const step = { round, generator, seed, tunable, lr, share: 1, scalars };
  return packStep(step, typeof seeds === "bigint" ? seeds : null);
}

/** The compact contribution for an aggregator that has received `like`; null if that is not possible. */
export function compactContribution(message, like) {
  const { train_loss: loss, train_time_ms: time, energy_mj: energy } = message.metrics;
  const head = headOf(like.body);
  const isTooLarge = Number.isFinite(loss) && !Number.isFinite(Math.fround(loss));
  const starts = equal(message.body.subarray(0, head.length), head);
  if (isTooLarge || !head.length || !starts || message.round >= MOST_ROUNDS) return null;
  const metrics = new Uint8Array(METRICS_BYTES);
  view(metrics).setFloat32(0, loss, true);
  view(metrics).setUint16(4, toBfloat16(time), true);
  view(metrics).setUint16(6, toBfloat16(energy), true);
  const first = Uint8Array.of(VERSION & 0x0f);
  const seq8 = Uint8Array.of(like.seq & 0xff);
  const short = concat([first, varint(message.round), seq8, metrics, message.body.subarray(head.length)]);
  return isSame(fullContribution(short, like), message) ? short : null;
}

/** The full contribution, from a compact one and the one that it is like; `seq` is 0. Throws MessageError. */
export function fullContribution(payload, like) {
  const { round, rest } = splitHeader(payload, "short contribution");
  if (rest.length < 1 + METRICS_BYTES || rest[0] !== (like.seq & 0xff)) {
    throw new MessageError("a short contribution that is not like the one that is known");
  }
  const from = view(rest);
  const metrics = {
    ...like.metrics,
    train_loss: from.getFloat32(1, true),
    train_time_ms: whole(fromBfloat16(from.getUint16(5, true))),
    energy_mj: whole(fromBfloat16(from.getUint16(7, true))),
  };
  if (!Number.isFinite(metrics.train_time_ms) || !Number.isFinite(metrics.energy_mj)) {
    throw new MessageError("not a short contribution: its time or energy is no number");
  }
  return { ...like, round, seq: 0, metrics, body: concat([headOf(like.body), rest.subarray(1 + METRICS_BYTES)]) };
}

/** Whether both are equal but for `seq`, rounded metrics, and the peak memory, which is that of `like`. */
function isSame(read, message) {
  const empty = { train_loss: 0, train_time_ms: 0, energy_mj: 0, peak_memory_kib: 0 };
  const plain = (full) => encode(Contribution, { ...full, seq: 0, metrics: { ...full.metrics, ...empty } });
  return equal(plain(read), plain(message));
}

/** The header of safetensors: names, types and shapes; empty if `body` is none. */
function headOf(body) {
  const size = body.length < 8 ? Infinity : 8 + Number(view(body).getBigUint64(0, true));
  return size <= body.length ? body.subarray(0, size) : new Uint8Array();
}

/** The upper half of a binary32, rounded; it keeps 8 significant bits. */
function toBfloat16(value) {
  const word = new DataView(new ArrayBuffer(4));
  word.setFloat32(0, value);
  const bits = word.getUint32(0);
  if (Number.isNaN(value)) return bits >>> 16;
  return Math.min(0xff80, Math.floor((bits + 0x8000) / 0x10000));
}

function fromBfloat16(half) {
  const word = new DataView(new ArrayBuffer(4));
  word.setUint16(0, half);
  return word.getFloat32(0);
}

/** A number in 7 bits a byte, the lowest first; the highest bit of a byte says that another follows. */
function varint(value) {
  const bytes = [];
  let rest = value;
  for (; rest > 0x7f; rest = Math.floor(rest / 128)) bytes.push((rest % 128) | 0x80);
  return Uint8Array.from([...bytes, rest]);
}

/** The number of the round, and the bytes behind it. Throws MessageError. */
function splitHeader(payload, what) {
  if (!payload.length || (payload[0] & 0x0f) !== VERSION || payload[0] & (0x80 | WITH_MAC)) {
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
