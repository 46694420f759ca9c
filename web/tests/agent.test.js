import assert from "node:assert/strict";
import { test } from "node:test";

import { utf8 } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { Offer, encode } from "../device/messages.js";
import { write } from "../device/safetensors.js";
import * as topics from "../device/topics.js";
import { World } from "./scripted.js";

test("a device fetches, measures, says that it is ready, and sends one contribution to a round", async () => {
  const world = await World.made();
  world.offer = world.round(0);
  const agent = await world.device();
  await world.until(agent, () => world.of("hello").at(-1)?.num_examples === 40);
  assert.equal(world.of("hello")[0].num_examples, 0);
  const [task] = world.events.filter((event) => event.type === "task");
  assert.deepEqual([task.manifest.name, task.examples, task.forwardS > 0], ["digits-wrn-10-1", 40, true]);
  world.offer = world.round(1);
  world.tellAll(world.offer);
  await world.until(agent, () => world.events.some((event) => event.type === "receipt"));
  const [update] = world.of("contribution");
  assert.deepEqual([update.kind, update.round, update.num_examples, update.seq], ["class-means", 1, 40, 1]);
  assert.deepEqual(world.of("plan").map((plan) => plan.kind), ["class-means"]);
  world.tellAll(world.round(1));
  await world.until(agent, () => world.of("hello").length >= 3); // a repeated offer shows a restart
  for (let step = 0; step < 20; step += 1) await agent.step(0.001);
  assert.equal(world.of("contribution").length, 1);
});

test("the final model of a task is judged on held-out samples, and then nothing is left to do", async () => {
  const world = await World.made();
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => world.events.some((event) => event.type === "receipt"));
  assert.equal(agent.finished, false);
  world.tellAll(world.round(1, { done: true, kinds: [] }));
  await world.until(agent, () => agent.finished);
  const judged = world.events.filter((event) => event.type === "evaluated");
  assert.deepEqual(judged.at(-1).round, 1);
  assert.ok(judged.at(-1).right >= 0 && judged.at(-1).count === 10);
});

test("beside a closed-form head a device says that it judged the trained one, and judges that", async () => {
  const world = await World.made();
  const head = new Map([
    ["closed-form/head.weight", { dtype: "float32", shape: [10, 64], data: new Float32Array(640) }],
    ["closed-form/head.bias", { dtype: "float32", shape: [10], data: new Float32Array(10) }],
  ]);
  const aside = await world.hold(write(head));
  const agent = await world.device();
  for (const [number, more] of [[1, {}], [2, { aside }]]) {
    world.tellAll(world.round(number, more));
    await world.until(agent, () => world.events.filter((event) => event.type === "evaluated").length === number);
  }
  const [plain, beside] = world.events.filter((event) => event.type === "evaluated");
  assert.deepEqual([plain.otherHead, beside.otherHead], [false, true]);
  assert.deepEqual([beside.right, beside.count, beside.loss], [plain.right, plain.count, plain.loss]);
});

test("a task whose offer is cleared is told, neither asked for nor sent to, and gone on with when it is offered", async () => {
  const world = await World.made();
  world.offer = world.round(1);
  const agent = await world.device();
  await world.until(agent, () => world.events.some((event) => event.type === "receipt"));
  world.say(topics.offer("t"), new Uint8Array());
  const pattern = /task 't' is not offered any more: it is over or was given up/;
  await world.until(agent, () => world.events.some((event) => event.type === "log" && pattern.test(event.text)));
  assert.ok(!world.events.some((event) => event.type === "log" && /^ignored/.test(event.text)));
  world.offer = world.round(2);
  world.tellAll(world.offer);
  await world.until(agent, () => world.of("contribution").length === 2);
});

test("invalid messages are logged, and change nothing", async () => {
  const world = await World.made();
  const agent = await world.device();
  const offer = topics.offer("t");
  const rubbish = [
    [offer, Uint8Array.of(0x93, 1, 2), /not a .*Offer/],
    [offer, encode(Offer, world.round(1, { remaining_s: -3 })), /remaining_s is -3/],
    [offer, encode(Offer, world.round(1, { base: { checkpoint: [], sha: new Uint8Array(32) } })), /no checkpoint/],
    [topics.down("dev", "receipt"), utf8("x"), /not a Receipt/],
    [topics.down("dev", "get"), new Uint8Array(300_000), /at most 262144 are read/],
    ["some/other/topic", utf8("x"), /not a device topic/],
  ];
  for (const [topic, payload, text] of rubbish) {
    world.events.length = 0;
    world.say(topic, payload);
    await world.until(agent, () => world.events.some((event) => event.type === "log" && text.test(event.text)));
  }
  world.say(topics.down("dev", topics.block(new Uint8Array(32), 3)), utf8("nobody asked for it"));
  world.offer = world.round(1);
  agent.took({ kind: "connected", first: false });
  await world.until(agent, () => world.events.some((event) => event.type === "receipt"));
});

test("an error in a round's bundle or base is logged, and the next valid round is worked on", async () => {
  const world = await World.made();
  const agent = await world.device();
  const none = await world.hold(utf8("this is no zip at all, whatever its hash"));
  const zeros = await world.hold(new Uint8Array(1000));
  const lies = await world.hold(utf8("what it is named after"));
  world.swap(lies, utf8("something else, as long"));
  const unknown = { sha: new Uint8Array(32).fill(7), size: 100 };
  const wrong = [
    [{ bundle: none }, "left out: archive is not a sound zip"],
    [{ bundle: unknown }, "the aggregator does not have it"],
    [{ bundle: lies }, "had another hash"],
    [{ base: { checkpoint: [zeros], sha: zeros.sha } }, "are not safetensors"],
    [{ base: { ...world.base, sha: new Uint8Array(32) } }, "is not the aggregator's"],
    [{ kinds: [{ name: "telepathy", settings: {} }] }, "no kind of update called 'telepathy'"],
    [{ kinds: [{ name: "full", settings: { epochs: -1 } }] }, "epochs is -1"],
  ];
  let number = 0;
  for (const [more, text] of wrong) {
    number += 1;
    world.say(topics.down("dev", "task"), encode(Offer, world.round(number, more)));
    await world.until(agent, () => world.lines(text).length > 0);
  }
  assert.deepEqual(world.lines("this is a fault"), []);
  world.tellAll(world.round(number + 1));
  await world.until(agent, () => world.events.some((event) => event.type === "receipt"));
  assert.deepEqual(world.of("contribution").map((update) => update.round), [number + 1]);
});

test("a paused device tells that it is paused and why, and works when the pause ends", async () => {
  const world = await World.made();
  const agent = await world.device();
  agent.workGate.pause("the page is hidden");
  world.offer = world.round(1);
  await world.until(agent, () => world.of("plan").length > 0);
  assert.deepEqual([...world.of("plan")[0].reasons], ["paused: the page is hidden"]);
  assert.equal(world.of("state").at(-1).paused, true);
  assert.equal(world.of("contribution").length, 0);
  agent.workGate.resume("the page is hidden");
  await world.until(agent, () => world.events.some((event) => event.type === "receipt"));
  assert.equal(world.of("state").at(-1).paused, false);
});

test("a restarted process sends contributions without a receipt, with its own boot, and repeats no work", async () => {
  const disk = new MemoryDisk();
  const world = await World.made();
  world.offer = world.round(1);
  world.receipting = false;
  const first = await world.device({ disk });
  await world.until(first, () => world.of("contribution").length === 1);
  world.receipting = true;
  world.events.length = 0;
  const second = await world.device({ disk });
  await world.until(second, () => world.events.some((event) => event.type === "receipt"));
  const [before, after] = world.of("contribution");
  assert.notEqual(before.boot, after.boot);
  assert.deepEqual({ ...after, boot: before.boot }, before);
  assert.equal(world.events.filter((event) => event.type === "plan").length, 0);
});

test("a device that knows its aggregator's key ignores all other offers", async () => {
  const world = await World.made();
  const key = Uint8Array.from({ length: 32 }, (_, i) => [0x58, ...new Array(31).fill(0x66)][i]); // the base point
  const agent = await world.device({ key });
  world.offer = world.round(1);
  agent.took({ kind: "connected", first: false });
  await world.until(agent, () => world.lines("ignored: ").length > 0);
  assert.match(world.lines("ignored: ")[0].text, /refused|not signed|is not/);
  for (let step = 0; step < 10; step += 1) await agent.step(0.001);
  assert.equal(world.of("get").length, 0);
});

test("a device without samples is online but not ready, until samples come", async () => {
  const world = await World.made();
  const none = { x: new Float32Array(0), y: new Int32Array(0), shape: [1, 8, 8] };
  const some = { x: new Float32Array(128).fill(0.5), y: Int32Array.of(3, 4), shape: [1, 8, 8] };
  const here = { now: none };
  const agent = await world.device({
    samples: { training: () => here.now, held: () => none, count: () => here.now.y.length },
  });
  world.offer = world.round(0);
  agent.took({ kind: "connected", first: false });
  await world.until(agent, () => world.events.some((event) => event.type === "task"));
  await world.until(agent, () => world.of("hello").length > 1);
  assert.equal(world.of("hello").at(-1).num_examples, 0);
  here.now = some;
  agent.samplesChanged();
  await world.until(agent, () => world.of("hello").at(-1).num_examples === 2);
  assert.equal((await Promise.all([agent.predict(some.x), agent.step(0)]))[0].length, 20);
});

test("a device that was busy when it measured its speed measures again before it sits a round out", async () => {
  const world = await World.made();
  world.offer = world.round(0);
  world.busy = 3000;
  const agent = await world.device();
  await world.until(agent, () => world.events.some((event) => event.type === "task"));
  world.busy = 1;
  world.offer = world.round(1, { kinds: [{ name: "few-shot", settings: { epochs: 1 } }] });
  world.tellAll(world.offer);
  await world.until(agent, () => world.of("contribution").length > 0);
  assert.equal(world.lines("measuring again").length, 1);
  assert.deepEqual(world.of("plan").map((plan) => plan.kind), ["few-shot"]);
});
