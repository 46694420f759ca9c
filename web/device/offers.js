/** Checks the offers that a device receives, and notes when each round closes (device/connection/offers.py). */

import { MessageError } from "./errors.js";
import { isName } from "./topics.js";

/**
 * An open round, and when it closes on the device's own clock, in seconds.
 * @typedef {{offer: any, closes: number}} OpenRound
 */

/**
 * The round of an offer that came at the time `came`. Raises MessageError for an invalid offer.
 * @param {any} offer @param {number} came in seconds @returns {OpenRound}
 */
export function opened(offer, came) {
  const where = `offer of round ${offer.round} of '${offer.task}'`;
  if (!isName(offer.task)) throw new MessageError(`${where}: that is no name of a task`);
  for (const name of ["remaining_s", "deadline_s"]) {
    const seconds = offer[name];
    if (!Number.isFinite(seconds) || seconds < 0) {
      throw new MessageError(`${where}: ${name} is ${seconds}, expected 0 or more seconds`);
    }
  }
  if (offer.round < 0) throw new MessageError(`${where}: rounds are counted from 0`);
  if (BigInt(offer.seed) < 0n || BigInt(offer.seed) >= 2n ** 64n) {
    throw new MessageError(`${where}: seed is ${offer.seed}, expected 64 bits`);
  }
  const names = offer.family.map((/** @type {any} */ member) => member.name);
  if (new Set(["", ...names]).size <= names.length) {
    throw new MessageError(`${where}: models of its family are called ${JSON.stringify(names)}, each needs its own`);
  }
  for (const base of [offer.base, ...offer.family.map((/** @type {any} */ member) => member.base)]) {
    if (!base.checkpoint.length || base.steps < 0) {
      throw new MessageError(`${where}: a base has no checkpoint, or ${base.steps} steps`);
    }
  }
  return { offer, closes: came + offer.remaining_s };
}

/** Whether two offers are of the same round. @param {any} one @param {any} other */
export function isSame(left, other) {
  return left.run === other.run && left.round === other.round;
}
