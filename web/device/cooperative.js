/** Lets other tasks of this thread run during a long computation: messages of the page, pings of the link. */

const EVERY_MS = 50;
let last = 0;

/**
 * Let waiting tasks run, if 50 ms have passed since the last time; otherwise this takes no time.
 * @param {() => number} [clock] in milliseconds
 * @returns {Promise<boolean>} whether they ran
 */
export async function yieldToTasks(clock = () => performance.now()) {
  if (clock() - last < EVERY_MS) return false;
  await new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel(); // nested timers would wait for 4 ms at least
    port1.onmessage = () => resolve(port1.close());
    port2.postMessage(null);
  });
  last = clock();
  return true;
}
