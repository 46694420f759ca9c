/** Tests a device that is paused for a while. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Get, encode } from "../device/messages.js";
import * as topics from "../device/topics.js";
import { World } from "./scripted.js";

const HIDDEN = "the page is hidden";
const FULL = { kinds: [{ name: "full", settings: { epochs: 1 } }] };

async function settled(agent) {
  for (let step = 0; step < 30; step += 1) await agent.step(0.001);
}

/** A device that knows the task, and is ready. */
async function ready(world) {
  world.offer = world.round(0);
  const agent = await world.device();
  await world.until(agent, () => world.of("hello").at(-1)?.num_examples === 40);
  world.offer = null;
  await settled(agent);
  return agent;
}

test("a round that closed during a pause is not begun, and the device says hello after the pause", async () => {
  const world = await World.made();
  const agent = await ready(world);
  agent.workGate.pause(HIDDEN);
  world.tellAll(world.round(1));
  await settled(agent);
  world.pass(60);
  const hellos = world.of("hello").length;
  agent.workGate.resume(HIDDEN);
  await settled(agent);
  assert.deepEqual([world.of("contribution"), world.of("hello").length], [[], hellos + 1]);
  world.tellAll(world.round(2));
  await world.until(agent, () => world.of("contribution").length === 1);
});

test("a hello during a pause is followed by a message that the device is paused", async () => {
  const world = await World.made();
  const agent = await ready(world);
  agent.workGate.pause(HIDDEN);
  await settled(agent);
  agent.took({ kind: "connected", first: false });
  await settled(agent);
  const [last, before] = world.messages.toReversed();
  assert.deepEqual([before.leaf, last.leaf, last.paused], ["hello", "state", true]);
});

test("nothing is sent while the link must be spared", async () => {
  const world = await World.made();
  const agent = await ready(world);
  world.receipting = false;
  world.tellAll(world.round(1, FULL));
  await world.until(agent, () => world.of("contribution").length === 1);
  const [{ blob }] = world.of("contribution");
  const ask = () => world.say(topics.down("dev", "get"), encode(Get, { blob, blocks: [0] }));
  const blocks = () => world.of("block").length;
  agent.workGate.pause("the link costs money", { quiet: true });
  world.pass(300);
  ask();
  await settled(agent);
  assert.deepEqual([world.of("contribution").length, blocks()], [1, 0]);
  agent.workGate.pause(HIDDEN);
  agent.workGate.resume("the link costs money"); // the other reason to pause stays, but waiting contributions are sent
  ask();
  await settled(agent);
  assert.deepEqual([world.of("contribution").length, blocks()], [2, 1]);
});

test("a newer round during a pause ends the work on the old one, and is worked on", async () => {
  const world = await World.made();
  const agent = await ready(world);
  const { events } = world;
  events.push = (event) => {
    if (event.type === "plan" && event.round === 1) {
      agent.workGate.pause(HIDDEN); // just before the work begins
      setImmediate(() => world.tellAll(world.round(2)));
    }
    return Array.prototype.push.call(events, event);
  };
  world.tellAll(world.round(1, FULL));
  await world.until(agent, () => world.lines("given up").length > 0);
  assert.match(world.lines("given up")[0].text, /^round 1 given up, \d+% done: paused: the page is hidden$/);
  agent.workGate.resume(HIDDEN);
  await world.until(agent, () => world.of("contribution").length === 1);
  assert.equal(world.of("contribution")[0].round, 2);
});
