/**
 * How a device makes a base model: by replaying steps from its state, or from the checkpoint
 * (device/delivery/cache.py).
 */
import { equal } from "./bytes.js";
import { MessageError, UnusableBase } from "./errors.js";
import { isWhole, same } from "./messages.js";
import { SEGMENT, count, decode, logStart, unpack } from "./step_log.js";

/**
 * Most products of a scalar and an element of its direction to replay if a checkpoint can be had instead. They take
 * a minute or two on a small board, see docs/zeroth-order.md.
 */
const MOST_REPLAYED = 2 ** 34;

/**
 * @typedef {{ line: Uint8Array, at: number, weights: any }} ReplayState
 *   The replay state: weights that the device has, after `at` steps of the log named `line`.
 * @typedef {{ start: ReplayState | null, steps: number, needed: readonly any[] }} BaseRoute
 *   A route: replays `steps` steps from `start`, or from the checkpoint if that is null. `needed` are the blobs for it.
 */

/**
 * The route to a base that fetches fewer bytes, from the replay state `state` or from the checkpoint. null if the
 * base names no route, or if the whole offer may name a shorter one. Blobs that are `here` need not be fetched. If
 * there is a choice, replay is limited to MOST_REPLAYED.
 * @param {ReplayState | null} state @param {(blob: any) => boolean} here @returns {BaseRoute | null}
 */
export function findRoute(base, state, here) {
  const begun = segments(base, base.steps);
  const anew = begun && { start: null, steps: base.steps, needed: [...base.checkpoint, ...begun] };
  if (!state || !equal(state.line, base.line) || state.at > base.at) return anew;
  const steps = base.at - state.at;
  const needed = segments(base, steps);
  if (!needed) return isWhole(base) || (anew && !lacking(anew, here)) ? anew : null;
  const on = { start: state, steps, needed };
  if (!anew) return on;
  const elements = Math.floor(bytesOf(base.checkpoint) / 4);
  const scalars = base.tail.length ? steps * base.tail.at(-1).width : bytesOf(needed);
  if (scalars * elements > MOST_REPLAYED && steps > base.steps) return anew;
  return lacking(on, here) <= lacking(anew, here) ? on : anew;
}

/**
 * The steps of a route. Rejects with BlobError, UnusableBase for a log that is damaged or not of this base.
 * @param {BaseRoute} route @param {import("./blobs.js").Blobs} blobs
 */
export async function stepsOf(route, base, blobs) {
  try {
    const tail = await unpack(base.tail);
    if (route.steps <= tail.length) return tail.slice(tail.length - route.steps);
    const named = route.needed.filter((blob) => base.log.some((entry) => same(entry, blob)));
    const logged = [];
    for (const blob of named) logged.push(...(await decode(await blobs.get(blob))));
    if (logged.length >= route.steps) return logged.slice(logged.length - route.steps);
    throw new UnusableBase(`the log of the base has ${logged.length} steps, ${route.steps} are needed`);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    throw new UnusableBase(`the log of the base is damaged: ${error.message}`);
  }
}

/**
 * The blobs with the last `steps` steps: none if the offer itself has them; null if the log does not go back so far.
 */
function segments(base, steps) {
  if (steps <= inTail(base)) return [];
  const first = base.at - steps;
  const begins = logStart(base);
  if (first < begins || first < 0) return null;
  return base.log.slice(Math.floor((first - begins) / SEGMENT));
}

function inTail(base) {
  try {
    return count(base.tail);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    throw new UnusableBase(`the last steps of the base are damaged: ${error.message}`);
  }
}

const bytesOf = (blobs) => blobs.reduce((sum, blob) => sum + blob.size, 0);
/** Bytes to fetch. */
const lacking = (route, here) => bytesOf(route.needed.filter((blob) => !here(blob)));
