/** How a device gets to a base model, as client/cache/base_route.py: by steps from where it stands, or anew. */
import { equal } from "./bytes.js";
import { MessageError, UnusableBase } from "./errors.js";
import { isWhole, same } from "./messages.js";
import { SEGMENT, count, decode, logBegins, unpack } from "./step_log.js";

/**
 * Products of a scalar and an element of its direction that are replayed rather than that a checkpoint is fetched:
 * a minute or two on a small board (docs/zeroth-order.md).
 */
const MOST_REPLAYED = 2 ** 34;

/**
 * @typedef {{ line: Uint8Array, at: number, weights: any }} Stand
 *   Weights that were made, or came, and where they are: so many steps on this line.
 * @typedef {{ start: Stand | null, steps: number, needed: readonly any[] }} Way
 *   `steps` steps to go, from the checkpoint on where there is no `start`; `needed` are the blobs of it.
 */

/**
 * The one that takes fewer bytes of those that are not `here`; what it replays is bounded, where there is another.
 * null where neither can be gone by what the base names, or the whole of it may name fewer bytes.
 * @param {Stand | null} stand @param {(blob: any) => boolean} here @returns {Way | null}
 */
export function way(base, stand, here) {
  const begun = segments(base, base.steps);
  const anew = begun && { start: null, steps: base.steps, needed: [...base.checkpoint, ...begun] };
  if (!stand || !equal(stand.line, base.line) || stand.at > base.at) return anew;
  const steps = base.at - stand.at;
  const needed = segments(base, steps);
  if (!needed) return isWhole(base) || (anew && !lacking(anew, here)) ? anew : null;
  const on = { start: stand, steps, needed };
  if (!anew) return on;
  const elements = Math.floor(bytesOf(base.checkpoint) / 4);
  const scalars = base.tail.length ? steps * base.tail.at(-1).width : bytesOf(needed);
  if (scalars * elements > MOST_REPLAYED && steps > base.steps) return anew;
  return lacking(on, here) <= lacking(anew, here) ? on : anew;
}

/**
 * Those to go. Rejects with BlobError, UnusableBase for a log that is not one, or not of this base.
 * @param {Way} way @param {import("./blobs.js").Blobs} blobs
 */
export async function stepsOf(way, base, blobs) {
  try {
    const tail = await unpack(base.tail);
    if (way.steps <= tail.length) return tail.slice(tail.length - way.steps);
    const named = way.needed.filter((blob) => base.log.some((one) => same(one, blob)));
    const logged = [];
    for (const blob of named) logged.push(...(await decode(await blobs.get(blob))));
    if (logged.length >= way.steps) return logged.slice(logged.length - way.steps);
    throw new UnusableBase(`the log of the base has ${logged.length} steps, ${way.steps} are needed`);
  } catch (error) {
    if (!(error instanceof MessageError)) throw error;
    throw new UnusableBase(`the log of the base is damaged: ${error.message}`);
  }
}

/**
 * The blobs that have the last so many steps: none where the offer has them itself; null where the log does not go
 * back so far.
 */
function segments(base, steps) {
  if (steps <= inTail(base)) return [];
  const first = base.at - steps;
  const begins = logBegins(base);
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
const lacking = (way, here) => bytesOf(way.needed.filter((blob) => !here(blob)));
