import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex } from "../device/bytes.js";
import { Hours } from "../device/work_gate.js";
import { Contribution, FromDevice, Hello, Plan, State, decode } from "../device/messages.js";
import { bareHello } from "../device/reports.js";
import { AND_MORE, Voice } from "../device/presence.js";
import { sealer } from "../device/signing.js";
import { Standing } from "../device/pause_notice.js";
import { vectors } from "./vectors.js";

const BOOT = 7n;
const PLAN = { task: "t", round: 3, kind: "few-shot", seconds: 1, memory_bytes: 2, energy_j: 3 };
const KINDS = { state: State, hello: Hello, plan: Plan, contribution: Contribution };

/** What was said, by its leaf, in order. */
function spoken() {
  const said = [];
  const publish = (topic, payload, retain = false) => {
    const leaf = topic.split("/").slice(5).join("/");
    said.push({ leaf, retain, ...(KINDS[leaf] ? decode(KINDS[leaf], payload) : { payload }) });
  };
  const voice = new Voice("dev", BOOT);
  voice.link = { publish, underWay: () => 0, bytesUp: 0, bytesDown: 0 };
  return { voice, said };
}

test("presence is retained, and names this life", () => {
  const { topic, payload, retain } = new Voice("dev", BOOT).presence(false, true);
  assert.equal(topic, "fl/v1/d/dev/up/state");
  assert.equal(retain, true);
  assert.deepEqual({ ...decode(State, payload) }, { boot: BOOT, online: false, leaving: true, paused: false });
});

test("the same plan is told once, and again to who has heard a new hello; sitting out is told each time", () => {
  const { voice, said } = spoken();
  const plan = { ...PLAN, reasons: ["full needs 9.0 s of 2.0 s (compute)"] };
  voice.plan(plan, 1e4);
  voice.plan({ ...plan, round: 4, reasons: ["full needs 8.0 s of 2.0 s (compute)"] }, 1e4);
  assert.equal(said.length, 1);
  voice.hello(bareHello(BOOT));
  voice.plan(plan, 1e4);
  voice.plan({ ...plan, kind: "" }, 0);
  voice.plan({ ...plan, kind: "" }, 0);
  assert.deepEqual(said.map((one) => one.leaf), ["plan", "hello", "plan", "plan", "plan"]);
});

test("a device with a key signs what it says of itself, in the order in which it says it, and nothing else", async () => {
  const sent = [];
  const voice = new Voice("dev", BOOT);
  voice.link = { publish: (topic, payload) => sent.push({ topic, payload }), underWay: () => 0, bytesUp: 0, bytesDown: 0 };
  const secret = fromHex(vectors("following").says.secret);
  voice.sign(await sealer(secret), async () => new Uint8Array(8).fill(9));
  voice.paused(true);
  voice.hello(bareHello(BOOT));
  voice.plan({ ...PLAN, reasons: [] }, 1e4);
  voice.short(Uint8Array.of(4, 1, 2), "r");
  assert.deepEqual([voice.underWay(), voice.underWay("hello"), voice.underWay("contribution")], [3, 1, 0]);
  while (voice.underWay()) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(sent.map(({ topic }) => topic.split("/").at(-1)), ["state", "hello", "plan", "c"]);
  const [state, hello, plan, short] = sent.map((one) => one.payload);
  assert.equal(decode(State, state).paused, true);
  assert.equal(decode(Hello, decode(FromDevice, hello).message).boot, BOOT);
  assert.equal(decode(Plan, decode(FromDevice, plan).message).round, 3);
  assert.equal(decode(FromDevice, plan).signature.length, 64);
  assert.deepEqual([...short], [0x14, 1, 2, ...new Uint8Array(8).fill(9)]);
  assert.ok(voice.isBrief);
  voice.sign(await sealer(secret), null);
  assert.ok(!voice.isBrief, "nobody could tell whose they are");
});

test("what the link does not take keeps nothing back that is signed after it", async () => {
  const sent = [];
  const voice = new Voice("dev", BOOT);
  const publish = (topic) => {
    sent.push(topic.split("/").at(-1));
    if (sent.length === 1) throw new Error("too large");
  };
  voice.link = { publish, underWay: () => 0, bytesUp: 0, bytesDown: 0 };
  voice.sign(await sealer(fromHex(vectors("following").says.secret)), null);
  voice.hello(bareHello(BOOT));
  voice.plan({ ...PLAN, reasons: [] }, 1e4);
  for (let wait = 0; voice.underWay() && wait < 1000; wait += 1) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(sent, ["hello", "plan"]);
  assert.equal(voice.underWay(), 0);
});

test("a plan has room for its signature, or is not told", async () => {
  const { voice, said } = spoken();
  voice.plan({ ...PLAN, reasons: [] }, 75);
  assert.equal(said.length, 1);
  voice.sign(await sealer(new Uint8Array(32)), null);
  voice.plan({ ...PLAN, kind: "full", reasons: [] }, 75);
  assert.equal(voice.underWay(), 0);
});

test("reasons that there is no time for are left out, from the end, and then the plan", () => {
  const { voice, said } = spoken();
  const reasons = ["full needs more", "entropy-subset 50% needs more", "peft bias needs more"];
  voice.plan({ ...PLAN, reasons }, 90);
  assert.deepEqual(said[0].reasons, ["full needs more", AND_MORE]);
  voice.plan({ ...PLAN, kind: "zeroth-order", reasons }, 20);
  assert.equal(said.length, 1);
});

test("a pause is told once, with why in the open round; who was told is told the plan when it goes on", () => {
  const { voice, said } = spoken();
  const hours = new Hours(() => 0);
  const standing = new Standing(hours, voice);
  standing.plan({ ...PLAN, reasons: [] }, 1e4);
  hours.pause("the page is hidden");
  const offer = { task: "t", round: 3 };
  standing.pause(offer);
  standing.pause(offer);
  assert.equal(standing.resume(), true);
  assert.equal(standing.resume(), false);
  voice.hello(bareHello(BOOT));
  standing.greeted();
  const told = said.map((one) => [one.leaf, one.paused ?? one.kind ?? ""]);
  const plan = ["plan", "few-shot"];
  assert.deepEqual(told, [plan, ["state", true], ["plan", ""], ["state", false], ["hello", ""], plan]);
  assert.deepEqual(said[2].reasons, ["paused: the page is hidden"]);
});

test("a block that is still on its way is not sent twice", () => {
  const { voice, said } = spoken();
  const sha = new Uint8Array(32).fill(1);
  voice.block(sha, 2, Uint8Array.of(5));
  voice.link.underWay = (topic) => (topic.endsWith("/2") ? 1 : 0);
  voice.block(sha, 2, Uint8Array.of(5));
  voice.block(sha, 3, Uint8Array.of(6));
  assert.deepEqual(said.map((one) => one.leaf.split("/").at(-1)), ["2", "3"]);
});
