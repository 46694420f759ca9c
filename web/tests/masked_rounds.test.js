/** Rounds whose offer has masks: what a device sends, keeps and chooses. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Bundle } from "../device/bundle.js";
import { equal } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { publicKey } from "../device/key_agreement.js";
import { make } from "../device/kinds/registry.js";
import { layoutOf } from "../device/masking/layout.js";
import { write } from "../device/safetensors.js";
import { World, ZIP } from "./scripted.js";

const bundle = await Bundle.open(ZIP);
const key = await publicKey(new Uint8Array(32).fill(7));
const HELPERS = [{ name: "uni", key }, { name: "club", key: await publicKey(new Uint8Array(32).fill(8)) }];
const MASKS = { helpers: HELPERS, min_group: 5, capacity: 64, most_weight: 40, noise_milli: 0, clip_milli: 0, alone: [] };
const kind = (name, settings = {}) => ({ kinds: [{ name, settings }] });
const FULL = kind("full", { epochs: 1 });
const FEW_SHOT = kind("few-shot", { join_base: true });
const eventsOf = (world, type) => world.events.filter((event) => event.type === type);

/** The contributions of rounds 1 to `count`, each of which begins when the one before has its receipt. */
async function contributions(count, more, disk) {
  const world = await World.made();
  world.offer = world.round(1, { masks: MASKS, ...more });
  const agent = await world.device({ disk });
  for (let round = 1; round <= count; round += 1) {
    if (round > 1) world.tellAll(world.round(round, { masks: MASKS, ...more }));
    await world.until(agent, () => eventsOf(world, "receipt").length === round);
  }
  return { world, updates: world.of("contribution") };
}

test("a contribution to a round with masks has a tag for each helper, and its loss is not in the clear", async () => {
  const { world, updates: [update] } = await contributions(1, FEW_SHOT);
  assert.deepEqual([update.mask.key.length, update.mask.tags.map((tag) => tag.length)], [32, [16, 16]]);
  assert.ok(Number.isNaN(update.metrics.train_loss));
  assert.equal(update.num_examples, 40);
  const layout = layoutOf(make("few-shot"), bundle.manifest, bundle.weights(), MASKS);
  assert.equal(update.body.length, 4 * layout.values + 8 * layout.numbers);
  assert.equal(eventsOf(world, "made")[0].leastDevices, 5);
});

test("a round without masks is answered in the clear", async () => {
  const { world, updates: [update] } = await contributions(1, { ...FEW_SHOT, masks: null });
  assert.equal(update.mask, null);
  assert.ok(update.metrics.train_loss > 0);
  assert.equal(eventsOf(world, "made")[0].leastDevices, 0);
});

test("a large masked update goes by its hash, without the codec of its kind", async () => {
  const { updates: [update] } = await contributions(1, kind("full", { epochs: 1, codec: "int8" }));
  const layout = layoutOf(make("full"), bundle.manifest, bundle.weights(), MASKS);
  assert.equal(update.blob.size, 4 * layout.values + 8 * layout.numbers);
});

test("two updates of equal content have masks of different keys", async () => {
  const { updates: [first, other] } = await contributions(2, kind("class-means"));
  assert.ok(!equal(first.mask.key, other.mask.key) && !equal(first.body, other.body));
});

test("a device keeps the masked content alone, and a restarted one sends it again as it is", async () => {
  const disk = new MemoryDisk();
  const world = await World.made();
  world.receipting = false;
  world.offer = world.round(1, { masks: MASKS, ...FULL });
  const agent = await world.device({ disk });
  await world.until(agent, () => world.of("contribution").length > 0);
  const [update] = world.of("contribution");
  const sizes = [];
  for (const key of await disk.keys()) sizes.push((await disk.get(key)).length);
  const clear = write(bundle.weights()).length;
  assert.equal(sizes.filter((size) => size === update.blob.size).length, 1);
  assert.equal(sizes.filter((size) => size === clear).length, 1, "the base, and no update");
  await world.until(await world.device({ disk }), () => world.of("contribution").length > 1);
  const again = world.of("contribution").at(-1);
  assert.deepEqual([again.blob, again.mask, again.round], [update.blob, update.mask, 1]);
});

test("an update that was clipped is logged, and no second plan is sent", async () => {
  const { world } = await contributions(1, { ...FULL, masks: { ...MASKS, clip_milli: 1 } });
  assert.deepEqual(world.lines("round 1: its changes were shortened to ").map(({ level }) => level), ["info"]);
  assert.equal(world.of("plan").length, 1);
});

test("an update that was shortened to fit the sum is logged, and a plan says so without the factor", async () => {
  const { world } = await contributions(1, kind("full", { epochs: 1, lr: 100 }));
  assert.deepEqual(world.lines("round 1: its changes were shortened to ").map(({ level }) => level), ["warning"]);
  const reasons = world.of("plan").map((plan) => plan.reasons);
  assert.deepEqual(reasons, [[], ["its changes were shortened to fit a masked sum"]]);
});

test("an update that cannot be masked is left out with the reason, and the next round is worked on", async () => {
  const world = await World.made();
  world.offer = world.round(1, { masks: { ...MASKS, helpers: [{ name: "uni", key: new Uint8Array(32) }] } });
  const agent = await world.device();
  await world.until(agent, () => world.lines("round 1 left out").length > 0);
  assert.match(world.lines("round 1 left out")[0].text, /^round 1 left out: not a valid key for a mask/);
  world.tellAll(world.round(2, { masks: MASKS }));
  await world.until(agent, () => eventsOf(world, "receipt").length > 0);
  assert.deepEqual(world.of("contribution").map((update) => update.round), [2]);
});

test("a kind that central noise does not hide is not chosen", async () => {
  const kinds = [...kind("class-means").kinds, ...FEW_SHOT.kinds];
  const { world, updates } = await contributions(1, { kinds, masks: { ...MASKS, noise_milli: 1000, clip_milli: 1000 } });
  assert.equal(updates[0].kind, "few-shot");
  const [{ reasons }] = world.of("plan");
  assert.deepEqual(reasons, ["class-means class-means sends sums, counts, to which central noise is not added"]);
});

test("classifiers that count alike are not masked, whatever their samples", async () => {
  const { world, updates } = await contributions(1, { kinds: [...kind("few-shot").kinds, ...kind("class-means").kinds] });
  assert.equal(updates[0].kind, "class-means");
  assert.match(world.of("plan")[0].reasons[0], /^few-shot cannot be masked: the mean of its classifiers counts each device alike/);
});

test("a device counts on the bytes of the masked update when it chooses", async () => {
  const statistics = {};
  const { world } = await contributions(1, kind("few-shot", { join_base: true, statistics }));
  const { values, numbers } = layoutOf(make("few-shot", { statistics }), bundle.manifest, bundle.weights(), MASKS);
  const [{ cost }] = eventsOf(world, "plan");
  assert.equal(cost.bytesUp, 4 * values + 8 * numbers + 120);
  assert.equal(eventsOf(world, "made")[0].bytesUp, cost.bytesUp);
});

test("a browser without X25519 leaves rounds with masks out, and says why", async (t) => {
  const { importKey } = crypto.subtle;
  t.mock.method(crypto.subtle, "importKey", function of(form, raw, algorithm, ...more) {
    if (algorithm === "X25519") return Promise.reject(new DOMException("no", "NotSupportedError"));
    return importKey.call(this, form, raw, algorithm, ...more);
  });
  const world = await World.made();
  world.offer = world.round(1, { masks: MASKS });
  const agent = await world.device();
  await world.until(agent, () => world.lines("round 1 left out").length > 0);
  assert.match(world.lines("round 1 left out")[0].text, /this browser lacks X25519: update the browser$/);
  world.tellAll(world.round(2));
  await world.until(agent, () => eventsOf(world, "receipt").length > 0);
  assert.deepEqual(world.of("contribution").map((update) => update.round), [2]);
});

test("a kind that too few devices chose is chosen only if no other fits", async () => {
  const kinds = [...FULL.kinds, ...FEW_SHOT.kinds];
  const masks = (...alone) => ({ ...MASKS, alone });
  const chosen = async (more) => {
    const { world, updates } = await contributions(1, { kinds, ...more });
    return [updates[0].kind, world.of("plan").at(-1).reasons];
  };
  assert.deepEqual(await chosen({ masks: masks() }), ["full", []]);
  const [other, reasons] = await chosen({ masks: masks("full") });
  assert.deepEqual([other, reasons], ["few-shot", ["full was chosen by too few devices to be summed"]]);
  assert.deepEqual(await chosen({ masks: masks("full", "few-shot") }), ["full", []]);
});
