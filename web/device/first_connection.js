/** The first connection: a device that is there before its broker, or its network, waits for it. */

import { BrokerUnreachable } from "./errors.js";
import { Patience } from "./backoff.js";

/** Seconds before the first new attempt, and at most. */
const BACK_OFF_S = /** @type {[number, number]} */ ([0.5, 30]);

/**
 * Connect, however long that takes. Why it waits is said once in a row. Throws BrokerRefused: who is not let
 * in now will not be later.
 * @param {{connect: () => Promise<void>}} link @param {(level: string, text: string) => void} log
 * @param {() => boolean} isStopped whether to give up; false is returned then
 */
export async function reach(link, log, isStopped = () => false) {
  const patience = new Patience(BACK_OFF_S, Math.random);
  let said = "";
  while (!isStopped()) {
    try {
      await link.connect();
      return true;
    } catch (error) {
      if (!(error instanceof BrokerUnreachable)) throw error;
      if (error.message !== said) log("warning", `${error.message}; trying again until it does`);
      said = error.message;
      patience.failed();
      await new Promise((resolve) => setTimeout(resolve, 1000 * patience.wait()));
    }
  }
  return false;
}
