/** A long computation lets what else waits in this thread go on: messages of the page, pings of the link. */

const EVERY_MS = 50;
let last = 0;

/**
 * Every 50 ms what waits is let in; otherwise this takes no time.
 * @param {() => number} [clock] in milliseconds
 * @returns {Promise<boolean>} whether it was let in
 */
export async function breathe(clock = () => performance.now()) {
  if (clock() - last < EVERY_MS) return false;
  await new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel(); // timers wait for 4 ms at least, one in another
    port1.onmessage = () => resolve(port1.close());
    port2.postMessage(null);
  });
  last = clock();
  return true;
}
