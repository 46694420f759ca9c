/** A long computation lets what else waits in this thread go on: messages of the page, pings of the link. */

const EVERY_MS = 50;
let last = 0;

/** Every 50 ms what waits is let in; otherwise this takes no time. @returns {Promise<void>} */
export async function breathe() {
  const now = performance.now();
  if (now - last < EVERY_MS) return;
  await new Promise((resolve) => setTimeout(resolve, 0));
  last = performance.now();
}
