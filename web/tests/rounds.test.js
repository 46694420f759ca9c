/** Tests the order of a device's work: fetch, train, send, judge. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { MemoryDisk } from "../device/disk.js";
import { DiskError } from "../device/errors.js";
import { hexOf } from "../device/messages.js";
import { write } from "../device/safetensors.js";
import { SAMPLES_HERE, World, ZIP } from "./scripted.js";

const FULL = { kinds: [{ name: "full", settings: { epochs: 1 } }] };
const OVER = { done: true, kinds: [] };
const eventsOf = (world, type) => world.events.filter((event) => event.type === type);

async function settled(agent, steps = 30) {
  for (let step = 0; step < steps; step += 1) await agent.step(0.001);
}

/** A base that differs from the bundle's weights, held by `world`. */
async function another(world) {
  const weights = (await Bundle.open(ZIP)).weights();
  for (const { data } of weights.values()) data[0] += 1;
  const blob = await world.hold(write(weights));
  return { checkpoint: [blob], sha: blob.sha };
}

/** The bundle's own weights as a base, in parts as in an offer. */
async function own(world) {
  const bundle = await Bundle.open(ZIP);
  const weights = bundle.weights();
  const parts = bundle.manifest.parts().map((specs) => new Map(specs.map(({ name }) => [name, weights.get(name)])));
  return { checkpoint: await Promise.all(parts.map((part) => world.hold(write(part)))), sha: world.base.sha };
}

/** A disk that refuses contributions and blobs while it is `full`. */
class FailingDisk extends MemoryDisk {
  full = false;

  async put(key, bytes) {
    if (this.full && /^(blobs|outbox)\//.test(key)) throw new DiskError("the disk is full");
    await super.put(key, bytes);
  }
}

/** A device that has sent its update, which has no receipt yet. */
async function contributed() {
  const world = await World.made();
  world.receipting = false;
  world.offer = world.round(1, FULL);
  const agent = await world.device();
  await world.until(agent, () => world.of("contribution").length > 0);
  return { world, agent, update: world.of("contribution")[0] };
}

test("a model is judged only after the aggregator has fetched the blob of the contribution", async () => {
  const { world, agent, update } = await contributed();
  assert.ok(update.blob, "it is too large for a message");
  await settled(agent);
  assert.deepEqual(eventsOf(world, "evaluated"), []);
  world.receipt(update);
  await world.until(agent, () => eventsOf(world, "evaluated").length > 0);
  assert.equal(eventsOf(world, "evaluated")[0].round, 0);
});

test("a model is judged at once when nothing is to be fetched from here", async () => {
  const world = await World.made();
  world.receipting = false;
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => eventsOf(world, "evaluated").length > 0);
  assert.equal(world.of("contribution")[0].blob, null);
});

test("the final model is judged once, however often the task is said to be done", async () => {
  const world = await World.made();
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => eventsOf(world, "receipt").length > 0);
  await settled(agent);
  world.events.length = 0;
  for (let times = 0; times < 3; times += 1) {
    world.tellAll(world.round(1, OVER));
    await settled(agent);
  }
  assert.equal(agent.finished, true);
  assert.deepEqual(eventsOf(world, "evaluated").map((event) => event.round), [1]);
});

test("a final model that does not come in time is given up, and that is logged", async () => {
  const world = await World.made();
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => eventsOf(world, "receipt").length > 0);
  const base = await another(world);
  world.swap(base.checkpoint[0], new Uint8Array()); // none of its blocks has the right length
  world.tellAll(world.round(1, { ...OVER, base }));
  await settled(agent);
  assert.equal(agent.finished, false);
  world.pass(61);
  await settled(agent);
  assert.equal(agent.finished, true);
  assert.equal(world.lines("the model of task 't' has not come in time").length, 1);
});

test("a run that begins with the bundle's weights needs no download of them", async () => {
  const world = await World.made();
  const [first, other] = [await own(world), await another(world)];
  const blobs = () => new Set(world.of("get").map((get) => hexOf(get.blob)));
  world.offer = world.round(1, { base: first });
  const agent = await world.device();
  await world.until(agent, () => eventsOf(world, "receipt").length === 1);
  assert.deepEqual(blobs(), new Set([hexOf(world.bundle)]));
  world.tellAll(world.round(2, { base: other }));
  await world.until(agent, () => eventsOf(world, "receipt").length === 2);
  world.tellAll(world.round(1, { run: "r2", base: first }));
  await world.until(agent, () => eventsOf(world, "receipt").length === 3);
  assert.deepEqual(blobs(), new Set([world.bundle, ...other.checkpoint].map(hexOf)));
});

test("a contribution that cannot be kept is not made again, and the next round is worked on", async () => {
  const world = await World.made();
  const disk = new FailingDisk();
  world.offer = world.round(0);
  const agent = await world.device({ disk });
  await world.until(agent, () => world.of("hello").at(-1)?.num_examples === 40);
  await settled(agent);
  disk.full = true;
  world.tellAll(world.round(1, FULL));
  await world.until(agent, () => world.lines("cannot be kept").length > 0);
  const plans = eventsOf(world, "plan").length;
  world.tellAll(world.round(1, FULL));
  await settled(agent);
  assert.deepEqual([eventsOf(world, "plan").length, world.of("contribution")], [plans, []]);
  disk.full = false;
  world.tellAll(world.round(2));
  await world.until(agent, () => eventsOf(world, "receipt").length > 0);
  assert.deepEqual(world.of("contribution").map((update) => update.round), [2]);
});

test("a model is judged before the next round only if that takes a small part of the round", async () => {
  const holdout = { x: new Float32Array(500 * 64), y: new Int32Array(500), shape: [1, 8, 8] }; // 0.3 s by this clock
  for (const [seconds, rounds] of [[50, [0, 1]], [4, []]]) {
    const world = await World.made();
    const agent = await world.device({ samples: { ...SAMPLES_HERE, held: () => holdout } });
    const offer = (round) => {
      world.offer = world.round(round, { deadline_s: seconds, remaining_s: seconds });
      world.tellAll(world.offer);
    };
    const tell = world.events.push.bind(world.events);
    world.events.push = (event) => {
      if (event.type === "made" && event.round < 3) offer(event.round + 1); // at once, as in a round of one device
      return tell(event);
    };
    offer(1);
    await world.until(agent, () => eventsOf(world, "made").length === 3);
    assert.deepEqual(eventsOf(world, "evaluated").map((event) => event.round), rounds);
  }
});

test("a model that another round has replaced is neither judged nor fetched", async () => {
  const { world, agent, update } = await contributed();
  const base = await another(world);
  world.tellAll(world.round(2, { ...FULL, base }));
  const tell = world.events.push.bind(world.events);
  world.events.push = (event) => {
    if (event.type === "plan" && event.round === 2) {
      agent.workGate.pause("you paused it");
      world.offer = world.round(3, { base });
      world.tellAll(world.offer); // replaces the second round, which is given up
    }
    return tell(event);
  };
  await world.until(agent, () => world.lines("given up").length > 0);
  world.receipt(update);
  agent.workGate.resume("you paused it");
  await world.until(agent, () => eventsOf(world, "evaluated").length > 0);
  assert.deepEqual(world.lines("is not judged"), []);
  assert.deepEqual(eventsOf(world, "evaluated").map((event) => event.round), [2]);
});

test("samples that came after the hello are told before the update, which may not claim more", async () => {
  const world = await World.made();
  let count = SAMPLES_HERE.count() - 10;
  const some = ({ x, y, shape }) => ({ x: x.slice(0, 64 * count), y: y.slice(0, count), shape });
  const samples = { training: () => some(SAMPLES_HERE.training()), held: SAMPLES_HERE.held, count: () => count };
  world.offer = world.round(1);
  const agent = await world.device({ samples });
  await world.until(agent, () => eventsOf(world, "receipt").length === 1);
  count += 10;
  world.receipting = false;
  world.tellAll(world.round(2));
  await world.until(agent, () => world.of("contribution").length === 2);
  const messages = world.messages.filter(({ leaf }) => leaf === "hello" || leaf === "contribution").slice(-2);
  assert.deepEqual(messages.map((message) => [message.leaf, message.num_examples]), [["hello", 40], ["contribution", 40]]);
});
