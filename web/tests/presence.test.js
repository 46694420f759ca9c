import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex } from "../device/bytes.js";
import { Contribution, FromDevice, Hello, Plan, State, decode } from "../device/messages.js";
import { AND_MORE, DeviceMessages } from "../device/presence.js";
import { bareHello } from "../device/reports.js";
import { sealer } from "../device/signing.js";
import { vectors } from "./vectors.js";

const BOOT = 7n;
const PLAN = { task: "t", round: 3, kind: "few-shot", seconds: 1, memory_bytes: 2, energy_j: 3 };
const KINDS = { state: State, hello: Hello, plan: Plan, contribution: Contribution };

/** The messages that were sent, with their leaves, in order. */
function spoken() {
  const sent = [];
  const publish = (topic, payload, retain = false) => {
    const leaf = topic.split("/").slice(5).join("/");
    sent.push({ leaf, retain, ...(KINDS[leaf] ? decode(KINDS[leaf], payload) : { payload }) });
  };
  const messages = new DeviceMessages("dev", BOOT);
  messages.link = { publish, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 };
  return { messages, sent };
}

test("presence is retained, and has this process's boot", () => {
  const { topic, payload, retain } = new DeviceMessages("dev", BOOT).presence(false, true);
  assert.equal(topic, "fl/v1/d/dev/up/state");
  assert.equal(retain, true);
  assert.deepEqual({ ...decode(State, payload) }, { boot: BOOT, online: false, leaving: true, paused: false });
});

test("the same plan is sent once, and again after a new hello; a plan to sit out is sent each time", () => {
  const { messages, sent } = spoken();
  const plan = { ...PLAN, reasons: ["full needs 9.0 s and has 2.0 s (mostly to compute)"] };
  messages.plan(plan, 1e4);
  messages.plan({ ...plan, round: 4, reasons: ["full needs 8.0 s and has 2.0 s (mostly to compute)"] }, 1e4);
  assert.equal(sent.length, 1);
  messages.hello(bareHello(BOOT));
  messages.plan(plan, 1e4);
  messages.plan({ ...plan, kind: "" }, 0);
  messages.plan({ ...plan, kind: "" }, 0);
  assert.deepEqual(sent.map((message) => message.leaf), ["plan", "hello", "plan", "plan", "plan"]);
});

test("a device with a key signs hellos, plans and contributions, in order, and nothing else", async () => {
  const sent = [];
  const messages = new DeviceMessages("dev", BOOT);
  const publish = (topic, payload) => sent.push({ topic, payload });
  messages.link = { publish, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 };
  const secret = fromHex(vectors("offer_stream").says.secret);
  messages.sign(await sealer(secret), async () => new Uint8Array(8).fill(9));
  messages.hello(bareHello(BOOT));
  messages.paused(true); // after the hello: it says that the device is ready
  messages.plan({ ...PLAN, reasons: [] }, 1e4);
  messages.short(Uint8Array.of(4, 1, 2), "r");
  const counts = ["", "hello", "contribution"].map((leaf) => messages.unacknowledged(leaf));
  assert.deepEqual(counts, [4, 1, 0]);
  while (messages.unacknowledged()) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(sent.map(({ topic }) => topic.split("/").at(-1)), ["hello", "state", "plan", "c"]);
  const [hello, state, plan, short] = sent.map((message) => message.payload);
  assert.equal(decode(State, state).paused, true);
  assert.equal(decode(Hello, decode(FromDevice, hello).message).boot, BOOT);
  assert.equal(decode(Plan, decode(FromDevice, plan).message).round, 3);
  assert.equal(decode(FromDevice, plan).signature.length, 64);
  assert.deepEqual([...short], [0x14, 1, 2, ...new Uint8Array(8).fill(9)]);
  assert.ok(messages.isCompact);
  messages.sign(await sealer(secret), null);
  assert.ok(!messages.isCompact, "nobody could tell whose they are");
});

test("a message that the link refuses does not keep back messages that are signed after it", async () => {
  const sent = [];
  const messages = new DeviceMessages("dev", BOOT);
  const publish = (topic) => {
    sent.push(topic.split("/").at(-1));
    if (sent.length === 1) throw new Error("too large");
  };
  messages.link = { publish, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 };
  messages.sign(await sealer(fromHex(vectors("offer_stream").says.secret)), null);
  messages.hello(bareHello(BOOT));
  messages.plan({ ...PLAN, reasons: [] }, 1e4);
  const pause = () => new Promise((resolve) => setTimeout(resolve, 1));
  for (let wait = 0; messages.unacknowledged() && wait < 1000; wait += 1) await pause();
  assert.deepEqual(sent, ["hello", "plan"]);
  assert.equal(messages.unacknowledged(), 0);
});

test("a plan has room for its signature, or is not sent", async () => {
  const { messages, sent } = spoken();
  messages.plan({ ...PLAN, reasons: [] }, 75);
  assert.equal(sent.length, 1);
  messages.sign(await sealer(new Uint8Array(32)), null);
  messages.plan({ ...PLAN, kind: "full", reasons: [] }, 75);
  assert.equal(messages.unacknowledged(), 0);
});

test("reasons without room are left out, from the end, and then the plan", () => {
  const { messages, sent } = spoken();
  const reasons = ["full needs more", "entropy-subset 50% needs more", "peft bias needs more"];
  messages.plan({ ...PLAN, reasons }, 90);
  assert.deepEqual(sent[0].reasons, ["full needs more", AND_MORE]);
  messages.plan({ ...PLAN, kind: "zeroth-order", reasons }, 20);
  assert.equal(sent.length, 1);
});

test("a block that is still on its way is not sent twice", () => {
  const { messages, sent } = spoken();
  const sha = new Uint8Array(32).fill(1);
  messages.block(sha, 2, Uint8Array.of(5));
  messages.link.unacknowledged = (topic) => (topic.endsWith("/2") ? 1 : 0);
  messages.block(sha, 2, Uint8Array.of(5));
  messages.block(sha, 3, Uint8Array.of(6));
  assert.deepEqual(sent.map((message) => message.leaf.split("/").at(-1)), ["2", "3"]);
});
