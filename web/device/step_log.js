/**
 * Compact encoding of the log of zeroth-order steps: fields that steps share are written once
 * (broker/wire/step_log.py).
 *
 * A step is {round, generator, seed, tunable, lr, share, scalars}: `w <- w - lr * share * mean of scalars[p] * z_p`.
 * `seed` is a bigint; `scalars` are numbers, encoded without loss.
 */
import { littleEndian, sha256, toLittleEndian, utf8, view } from "./bytes.js";
import { MessageError } from "./errors.js";
import { listOf } from "./fields.js";
import { fromHalf, toHalf } from "./half.js";
import { Stretch, unpacked } from "./messages.js";

/** Steps in one blob of the log, and between two checkpoints. */
export const SEGMENT = 512;
const MOST_STEPS = SEGMENT;
const MOST_NUMBERS = 2 ** 20;

const SIZES = { i1: 1, f2: 2, f4: 4, f8: 8 };
const READ = {
  i1: (from, at) => from.getInt8(at),
  f2: (from, at) => fromHalf(from.getUint16(at, true)),
  f4: (from, at) => from.getFloat32(at, true),
  f8: (from, at) => from.getFloat64(at, true),
};
const WRITE = {
  i1: (to, at, number) => to.setInt8(at, number),
  f2: (to, at, number) => to.setUint16(at, toHalf(number), true),
  f4: (to, at, number) => to.setFloat32(at, number, true),
  f8: (to, at, number) => to.setFloat64(at, number, true),
};
const Stretches = listOf(Stretch);

/**
 * The seed of a round, from the task's seed; below 2**53. @param {bigint} seed @param {number} number
 * @returns {Promise<bigint>}
 */
export async function roundSeed(seed, number) {
  return littleEndian(await sha256(utf8(`${seed}:${number}`)), 0, 8) >> 11n;
}

/**
 * One step as a stretch; `seed` is the task's, from which the step's seed may be derived; null if it is not known.
 * @param {any} step @param {bigint | null} seed @returns {Promise<any>}
 */
export async function packStep({ round, generator, tunable, lr, share, scalars, ...step }, seed) {
  const form = formOf(scalars);
  const isMade = seed !== null && (await roundSeed(seed, round)) === step.seed;
  return {
    round,
    generator,
    tunable,
    lr,
    width: scalars.length,
    form,
    scalars: written(form, scalars),
    seeds: isMade ? seed : toLittleEndian(step.seed, 8),
    shares: share === 1 ? new Uint8Array() : written("f8", [share]),
  };
}

/** The steps of stretches. Rejects with MessageError for invalid ones, and for more than a log may hold. */
export async function unpack(stretches) {
  const steps = count(stretches);
  const numbers = stretches.reduce((sum, stretch) => sum + countOf(stretch) * stretch.width, 0);
  if (steps > MOST_STEPS || numbers > MOST_NUMBERS) {
    throw new MessageError(
      `a log of ${steps} steps and ${numbers} scalars: at most ${MOST_STEPS} and ${MOST_NUMBERS} are read`,
    );
  }
  return (await Promise.all(stretches.map(stepsOf))).flat();
}

/** The last `most` steps of both; stretches that continue each other become one. Throws MessageError as `unpack`. */
export function lastOfBoth(before, added, most) {
  const stretches = [...before];
  for (const stretch of added) {
    const last = stretches.at(-1);
    if (last && continues(last, stretch)) stretches[stretches.length - 1] = { ...last, scalars: appended(last, stretch) };
    else stretches.push(stretch);
  }
  for (let over = count(stretches) - most; over > 0; ) {
    const first = stretches.shift();
    const steps = countOf(first);
    if (over < steps) stretches.unshift(dropFirst(first, over, steps));
    over -= steps;
  }
  return stretches;
}

/** The number of steps. Throws MessageError as `unpack`. */
export const count = (stretches) => stretches.reduce((sum, stretch) => sum + countOf(stretch), 0);

/** The stretches in a blob of the log, or in a compact offer. Throws MessageError for invalid ones. */
export const decodeStretches = (data, name = "log of steps") => unpacked(Stretches, data, name);

/** The steps in a blob of the log. Rejects with MessageError for an invalid one. @param {Uint8Array} data */
export async function decode(data) {
  return unpack(decodeStretches(data));
}

/** The position on its line at which the log of a base begins. */
export function logStart(base) {
  if (!base.log.length) return base.at;
  return Math.max(0, Math.floor((base.at - 1) / SEGMENT) - base.log.length + 1) * SEGMENT;
}

function countOf(stretch) {
  const size = stretch.width * SIZES[stretch.form];
  const { length } = stretch.scalars;
  if (stretch.width < 1 || !length || length % size) {
    throw invalid(stretch, `${length} bytes are no steps of ${stretch.width} scalars`);
  }
  return length / size;
}

async function stepsOf(stretch) {
  const steps = countOf(stretch);
  if (!Number.isSafeInteger(stretch.round + steps)) {
    throw invalid(stretch, "whole numbers beyond 2**53 are not counted");
  }
  const { width } = stretch;
  const scalars = numbersOf(stretch.form, stretch.scalars);
  const shares = stretch.shares.length ? each(stretch.shares, steps, (from, at) => from.getFloat64(at, true)) : null;
  const seeds = await seedsOf(stretch, steps);
  if ((shares && shares.length !== steps) || seeds.length !== steps) {
    throw invalid(stretch, `${steps} steps, ${shares?.length ?? steps} shares, ${seeds.length} seeds`);
  }
  return Array.from({ length: steps }, (_, place) => ({
    round: stretch.round + place,
    generator: stretch.generator,
    seed: seeds[place],
    tunable: stretch.tunable,
    lr: stretch.lr,
    share: shares ? shares[place] : 1,
    scalars: scalars.slice(place * width, (place + 1) * width),
  }));
}

async function seedsOf({ seeds, round }, steps) {
  if (seeds instanceof Uint8Array) return each(seeds, steps, (from, at) => from.getBigUint64(at, true));
  return Promise.all(Array.from({ length: steps }, (_, place) => roundSeed(seeds, round + place)));
}

/** A value from each 8 bytes, one for each step; none if there are more or fewer bytes. */
function each(data, steps, read) {
  const from = view(data);
  return data.length === 8 * steps ? Array.from({ length: steps }, (_, at) => read(from, 8 * at)) : [];
}

/** @returns {number[]} */
function numbersOf(form, data) {
  const from = view(data);
  const size = SIZES[form];
  return Array.from({ length: data.length / size }, (_, at) => READ[form](from, at * size));
}

function written(form, numbers) {
  const data = new Uint8Array(numbers.length * SIZES[form]);
  numbers.forEach((number, at) => WRITE[form](view(data), at * SIZES[form], number));
  return data;
}

/** The format of the fewest bytes that holds these scalars exactly. */
function formOf(numbers) {
  const holds = (form) => numbersOf(form, written(form, numbers)).every((read, at) => Object.is(read, numbers[at]));
  return Object.keys(SIZES).find(holds);
}

/** Whether `next` continues `stretch`, and both write no numbers but scalars. */
function continues(stretch, next) {
  const plain = !(stretch.seeds instanceof Uint8Array) && !stretch.shares.length;
  const names = ["generator", "tunable", "lr", "width", "form", "seeds"];
  const alike = names.every((name) => stretch[name] === next[name]);
  return plain && alike && !next.shares.length && next.round === stretch.round + countOf(stretch);
}

function appended(stretch, next) {
  const scalars = new Uint8Array(stretch.scalars.length + next.scalars.length);
  scalars.set(stretch.scalars);
  scalars.set(next.scalars, stretch.scalars.length);
  return scalars;
}

/** A stretch of `steps` steps without the first ones. */
function dropFirst(stretch, first, steps) {
  const rest = (data) => (data instanceof Uint8Array ? data.slice((data.length / steps) * first) : data);
  const { scalars, seeds, shares } = stretch;
  const remaining = { scalars: rest(scalars), seeds: rest(seeds), shares: rest(shares) };
  return { ...stretch, round: stretch.round + first, ...remaining };
}

const invalid = (stretch, why) => new MessageError(`steps from round ${stretch.round} on: ${why}`);
