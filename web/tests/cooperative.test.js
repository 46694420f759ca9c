import assert from "node:assert/strict";
import { test } from "node:test";

import { yieldToTasks } from "../device/cooperative.js";

/** Whether a waiting task of the thread runs during this work. */
async function letsIn(work) {
  let came = false;
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => (came = true);
  port2.postMessage(null);
  await work();
  port1.close();
  return came;
}

test("waiting tasks run during long work, and short work is not delayed", async () => {
  const began = performance.now();
  const at = (ms) => () => yieldToTasks(() => began + ms);
  assert.equal(await letsIn(at(1000)), true);
  assert.equal(await letsIn(at(1049)), false);
  assert.equal(await letsIn(at(1050)), true);
  assert.equal(await letsIn(at(1051)), false);
});
