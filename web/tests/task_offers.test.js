/** Tests of a device with aggregators that restart, and with several tasks. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Offer, encode } from "../device/messages.js";
import { ANOTHER_S } from "../device/offer_rules.js";
import * as topics from "../device/topics.js";
import { World } from "./scripted.js";

const SPEECH = { task: "speech", run: "s" };
const OVER = { done: true, kinds: [] };
const hellos = (world) => world.of("hello").map((hello) => hello.task);
const contributed = (world) => world.of("contribution").map((update) => [update.task, update.round]);

/** Lets the device do all that is due. */
async function settled(agent) {
  for (let step = 0; step < 30; step += 1) await agent.step(0.001);
}

/** A device that came while a round was open, and has contributed to it. Later hellos get no answer. */
async function inOpenRound(world) {
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => world.of("contribution").length === 1);
  await settled(agent);
  world.offer = null;
  return agent;
}

test("a device that came while a round was open says hello once if the aggregator restarts in it", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  const count = world.of("hello").length;
  world.tellAll(world.round(1)); // a restarted aggregator does not know which devices are here
  await settled(agent);
  assert.equal(world.of("hello").length, count + 1);
  assert.deepEqual(contributed(world), [["t", 1]]);
});

test("an aggregator that restarts in a round is sent contributions without a receipt at once", async () => {
  const world = await World.made();
  world.receipting = false;
  const agent = await inOpenRound(world);
  world.tellAll(world.round(1));
  await settled(agent);
  const [before, after] = world.of("contribution");
  assert.deepEqual(after, before);
});

test("neither a new round nor a retained offer is taken for a restart", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  const count = world.of("hello").length;
  world.tellAll(world.round(1), true);
  await settled(agent);
  world.tellAll(world.round(2));
  await settled(agent);
  assert.equal(world.of("hello").length, count);
  assert.deepEqual(contributed(world), [["t", 1], ["t", 2]]);
});

test("a lower round number of a new run is worked on", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  for (const round of [2, 3]) {
    world.tellAll(world.round(round));
    await settled(agent);
  }
  world.tellAll(world.round(2, { run: "r2" }));
  await settled(agent);
  assert.deepEqual(contributed(world).map(([, round]) => round), [1, 2, 3, 2]);
});

test("a device goes on to another task when its own is done, and a repeated offer does not bring it back", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  world.tellAll(world.round(1, SPEECH));
  await settled(agent);
  assert.deepEqual([contributed(world), new Set(hellos(world))], [[["t", 1]], new Set(["", "t"])]);
  world.offer = world.round(1, SPEECH);
  world.tellAll(world.round(1, OVER));
  await world.until(agent, () => world.of("contribution").length === 2);
  await settled(agent);
  assert.deepEqual(contributed(world), [["t", 1], ["speech", 1]]);
  world.say(topics.down("dev", "task"), encode(Offer, world.round(1, OVER)));
  await settled(agent);
  agent.samplesChanged();
  assert.equal(agent.finished, false);
  await settled(agent);
  assert.equal(hellos(world).at(-1), "speech");
});

test("a device whose hellos two tasks answer is in the later one, and then goes on to the other", async () => {
  const world = await World.made();
  const agent = await world.device();
  world.offer = null;
  world.say(topics.down("dev", "task"), encode(Offer, world.round(0, SPEECH)));
  await settled(agent);
  world.say(topics.down("dev", "task"), encode(Offer, world.round(1)));
  await world.until(agent, () => world.of("contribution").length === 1);
  world.offer = world.round(1, SPEECH);
  world.tellAll(world.round(1, OVER));
  await world.until(agent, () => world.of("contribution").length === 2);
  assert.deepEqual(contributed(world), [["t", 1], ["speech", 1]]);
});

test("a device does not return to a task that is over, though it heard of it while in another", async () => {
  const world = await World.made();
  const agent = await world.device();
  world.tellAll(world.round(1), true);
  world.tellAll(world.round(1, SPEECH), true);
  world.say(topics.down("dev", "task"), encode(Offer, world.round(1, SPEECH)));
  await world.until(agent, () => world.of("contribution").length === 1);
  world.tellAll(world.round(1, { ...SPEECH, ...OVER }));
  await settled(agent);
  assert.deepEqual([contributed(world), hellos(world).at(-1)], [[["speech", 1]], "t"]);
});

test("a device does not go on to a task that is done", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  world.tellAll(world.round(1, SPEECH));
  world.tellAll(world.round(1, { ...SPEECH, ...OVER }));
  world.tellAll(world.round(1, OVER));
  await world.until(agent, () => agent.finished);
  assert.equal(hellos(world).includes("speech"), false);
});

test("a device accepts that its task was done before it came if no other task is offered in time", async () => {
  const world = await World.made();
  const agent = await world.device();
  world.tellAll(world.round(3, OVER), true);
  await settled(agent);
  assert.equal(agent.finished, false);
  world.pass(ANOTHER_S);
  await settled(agent);
  assert.equal(agent.finished, true);
});
