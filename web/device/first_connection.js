/** Makes a device's first connection. Part of device/connection/connecting.py. */

import { BrokerUnreachable } from "./errors.js";
import { ReconnectDelay } from "./link_timing.js";

/** Seconds before the first new attempt, and at most. */
const BACK_OFF_S = /** @type {[number, number]} */ ([0.5, 30]);

/**
 * Connect, waiting as long as it takes: a device may start before its broker or its network. Logs the reason for
 * waiting once in a row. Throws BrokerRefused: a device that is refused now would be refused later, too.
 * @param {{connect: () => Promise<void>}} link @param {(level: string, text: string) => void} log
 * @param {() => boolean} isStopped whether to give up and return false
 * @param {() => Promise<unknown>} early resolves when an attempt is worth while before its time: the network is back
 */
export async function firstConnection(link, log, isStopped = () => false, early = () => new Promise(() => {})) {
  const delay = new ReconnectDelay(BACK_OFF_S, Math.random);
  let last = "";
  while (!isStopped()) {
    try {
      await link.connect();
      return true;
    } catch (error) {
      if (!(error instanceof BrokerUnreachable)) throw error;
      if (error.message !== last) log("warning", `${error.message}; trying again`);
      last = error.message;
      delay.failed();
      await Promise.race([early(), new Promise((resolve) => setTimeout(resolve, 1000 * delay.waitS()))]);
    }
  }
  return false;
}
