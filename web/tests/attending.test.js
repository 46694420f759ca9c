/** Which task a device is in, and who it says hello to: aggregators that restart, and several tasks. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { ANOTHER_S } from "../device/attending.js";
import { Elsewhere } from "../device/other_tasks.js";
import { Offer, encode } from "../device/messages.js";
import * as topics from "../device/topics.js";
import { World } from "./scripted.js";

const SPEECH = { task: "speech", run: "s" };
const OVER = { done: true, kinds: [] };
const hellos = (world) => world.of("hello").map((one) => one.task);
const contributed = (world) => world.of("contribution").map((one) => [one.task, one.round]);

/** All that it does at once. */
async function settled(agent) {
  for (let step = 0; step < 30; step += 1) await agent.step(0.001);
}

/** A device that came while a round was open, and has contributed to it; nothing more is offered to its hellos. */
async function inOpenRound(world) {
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => world.of("contribution").length === 1);
  await settled(agent);
  world.offer = null;
  return agent;
}

test("who came while a round was open says hello to an aggregator that is restarted in it, once", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  const said = world.of("hello").length;
  world.tellAll(world.round(1)); // the restarted one does not know who is here
  await settled(agent);
  assert.equal(world.of("hello").length, said + 1);
  assert.deepEqual(contributed(world), [["t", 1]]);
});

test("an aggregator that is restarted in a round is sent at once what it has not receipted", async () => {
  const world = await World.made();
  world.receipting = false;
  const agent = await inOpenRound(world);
  world.tellAll(world.round(1));
  await settled(agent);
  const [before, after] = world.of("contribution");
  assert.deepEqual(after, before);
});

test("a round that is new is no sign of a restart, and what is kept of one is none either", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  const said = world.of("hello").length;
  world.tellAll(world.round(1), true);
  await settled(agent);
  world.tellAll(world.round(2));
  await settled(agent);
  assert.equal(world.of("hello").length, said);
  assert.deepEqual(contributed(world), [["t", 1], ["t", 2]]);
});

test("an aggregator that goes back to an older round of a new run is worked for again", async () => {
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

test("a device goes on to another task when its own is over, and not back for what is said again", async () => {
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

test("a device whose hello two tasks answer is in the later one, and goes on to the other", async () => {
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

test("a device does not go back to the task that is over, though it heard of that while it was in the other", async () => {
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

test("a task that is over elsewhere is none to go to", async () => {
  const world = await World.made();
  const agent = await inOpenRound(world);
  world.tellAll(world.round(1, SPEECH));
  world.tellAll(world.round(1, { ...SPEECH, ...OVER }));
  world.tellAll(world.round(1, OVER));
  await world.until(agent, () => agent.finished);
  assert.equal(hellos(world).includes("speech"), false);
});

test("that a task was over before the device came is believed when no other has come in the meantime", async () => {
  const world = await World.made();
  const agent = await world.device();
  world.tellAll(world.round(3, OVER), true);
  await settled(agent);
  assert.equal(agent.finished, false);
  world.pass(ANOTHER_S);
  await settled(agent);
  assert.equal(agent.finished, true);
});

test("where it may go is remembered of so many tasks, and given by name", () => {
  const elsewhere = new Elsewhere();
  assert.equal(elsewhere.take(), "");
  for (let at = 0; at < 1000; at += 1) elsewhere.add(`t${at}`);
  elsewhere.add("t990");
  elsewhere.delete("t936");
  const names = [];
  for (let next = elsewhere.take(); next; next = elsewhere.take()) names.push(next);
  const last = Array.from({ length: 63 }, (_, i) => `t${937 + i}`);
  assert.deepEqual(names, last);
});
