import assert from "node:assert/strict";
import { test } from "node:test";

import { breathe } from "../device/cooperative.js";

/** Whether something that waits comes while this goes on. */
async function letsIn(work) {
  let came = false;
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => (came = true);
  port2.postMessage(null);
  await work();
  port1.close();
  return came;
}

test("what waits is let in when there was long work, and short work is not held up", async () => {
  const began = performance.now();
  const at = (ms) => () => breathe(() => began + ms);
  assert.equal(await letsIn(at(1000)), true);
  assert.equal(await letsIn(at(1049)), false);
  assert.equal(await letsIn(at(1050)), true);
  assert.equal(await letsIn(at(1051)), false);
});
