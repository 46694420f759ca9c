import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createServer } from "node:net";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { text, utf8 } from "../device/bytes.js";
import { BrokerRefused, BrokerUnreachable, MessageError } from "../device/errors.js";
import { Link } from "../device/link.js";
import { MESSAGE_LIMIT } from "../device/messages.js";
import { parseUrl } from "../device/url.js";
import { inNode } from "../node/transport.js";
import { freePort, skip, start, until } from "./mosquitto.js";

const FAST = { reconnectS: [0.05, 0.2], keepaliveS: 5 };
const OVER = ["mqtt", "ws"];
const LEAVING = fileURLToPath(new URL("leaving.js", import.meta.url));

/** A link that is closed at the end of the test, and its events. */
function linked(t, url, name, options = {}) {
  const events = [];
  const link = new Link(parseUrl(url), name, (event) => events.push(event), { ...FAST, ...options }, inNode());
  t.after(() => link.close());
  const payloads = (topic) =>
    events.filter((event) => event.kind === "received" && event.topic === topic).map((event) => text(event.payload));
  const eventsOf = (kind) => events.filter((event) => event.kind === kind);
  return { link, events, payloads, eventsOf };
}

async function connected(t, url, name, options) {
  const ends = linked(t, url, name, options);
  await ends.link.connect();
  return ends;
}

for (const over of OVER) {
  test(`messages arrive over ${over}, and their bytes on the wire are counted`, { skip }, async (t) => {
    const broker = await start(t);
    const url = over === "ws" ? broker.webUrl : broker.url;
    const reader = await connected(t, broker.url, "reader", { subscriptions: ["a/#"] });
    const { link, eventsOf } = await connected(t, url, "writer");
    assert.ok(link.connected);
    assert.deepEqual(eventsOf("connected"), [{ kind: "connected", first: true }]);
    const block = new Uint8Array(64 * 1024).map((_, at) => at % 251);
    assert.ok(await link.publish("a/b", block));
    await until(() => reader.eventsOf("received").length === 1);
    assert.deepEqual(reader.eventsOf("received")[0], { kind: "received", topic: "a/b", payload: block, retain: false });
    assert.equal(link.unacknowledged(), 0);
    assert.equal(link.bytesUp, 1 + 3 + 2 + 3 + 2 + block.length);
    assert.equal(reader.link.bytesDown, link.bytesUp);
  });

  test(`a lost device leaves its will, and a leaving one sends its own farewell, over ${over}`, { skip }, async (t) => {
    const broker = await start(t);
    const url = over === "ws" ? broker.webUrl : broker.url;
    const reader = await connected(t, broker.url, "reader", { subscriptions: ["s/+"] });
    const will = { topic: "s/lost", payload: utf8("offline") };
    const other = await connected(t, url, "lost", { will, greeting: { topic: "s/lost", payload: utf8("online") } });
    await until(() => reader.payloads("s/lost").length === 1);
    const rival = await connected(t, broker.url, "lost"); // the broker ends the older connection
    await until(() => reader.payloads("s/lost").includes("offline"));
    await rival.link.close();
    await other.link.close();
    const gone = await connected(t, url, "gone", { will: { topic: "s/gone", payload: utf8("lost") } });
    await gone.link.close({ topic: "s/gone", payload: utf8("left"), retain: false });
    await until(() => reader.payloads("s/gone").length === 1);
    assert.deepEqual(reader.payloads("s/gone"), ["left"]);
    const later = await connected(t, broker.url, "later", { subscriptions: ["s/+"] });
    await until(() => later.payloads("s/lost").length === 1);
    assert.ok(later.eventsOf("received")[0].retain, "the will is kept");
  });

  test(`a program that ends once its link is closed has no last will, over ${over}`, { skip }, async (t) => {
    const broker = await start(t);
    const reader = await connected(t, broker.url, "reader", { subscriptions: ["s"] });
    const ended = spawn(process.execPath, [LEAVING, over === "ws" ? broker.webUrl : broker.url], { stdio: "inherit" });
    await once(ended, "exit");
    await reader.link.publish("s", utf8("later"));
    await until(() => reader.payloads("s").includes("later"));
    assert.deepEqual(reader.payloads("s"), ["left", "later"]);
  });

  test(`a link reconnects, and sends its greeting and then waiting messages, over ${over}`, { skip }, async (t) => {
    const broker = await start(t);
    const url = over === "ws" ? broker.webUrl : broker.url;
    const greeting = { topic: "x/state", payload: utf8("online") };
    const { link, eventsOf, payloads } = await connected(t, url, "device", { greeting, subscriptions: ["dn/#"] });
    await broker.stop();
    await until(() => eventsOf("disconnected").length === 1);
    assert.ok(!link.connected);
    const waiting = ["1", "2", "3"].map((word) => link.publish("x/y", utf8(word)));
    assert.equal(link.unacknowledged("x/y"), 3);
    const again = await start(t, { ports: broker.ports });
    const reader = await connected(t, again.url, "reader", { subscriptions: ["x/#"] });
    assert.deepEqual(await Promise.all(waiting), [true, true, true]);
    await until(() => eventsOf("connected").length === 2);
    assert.deepEqual(eventsOf("connected")[1], { kind: "connected", first: false });
    assert.equal(link.unacknowledged(), 0);
    await until(() => reader.payloads("x/state").length > 0);
    await link.publish("x/y", utf8("last"));
    await until(() => reader.payloads("x/y").includes("last"));
    const words = reader.payloads("x/y");
    assert.deepEqual(words, ["1", "2", "3", "last"].slice(4 - words.length)); // the reader may have come later
    await reader.link.publish("dn/task", utf8("subscribed again"));
    await until(() => payloads("dn/task").length === 1);
  });
}

test("a retained message is marked, and a live one is not", { skip }, async (t) => {
  const broker = await start(t);
  const writer = await connected(t, broker.url, "writer");
  await writer.link.publish("fl/v1/all/round/digits", utf8("kept"), true);
  const { eventsOf } = await connected(t, broker.webUrl, "device", { subscriptions: ["fl/v1/all/round/+"] });
  await until(() => eventsOf("received").length === 1);
  await writer.link.publish("fl/v1/all/round/digits", utf8("live"), true);
  await until(() => eventsOf("received").length === 2);
  assert.deepEqual(eventsOf("received").map((event) => [text(event.payload), event.retain]), [["kept", true], ["live", false]]);
});

test("a message over the limit is refused before it is sent, and so are wildcards", { skip }, async (t) => {
  const broker = await start(t);
  const { link } = await connected(t, broker.webUrl, "device");
  assert.throws(() => link.publish("x", new Uint8Array(MESSAGE_LIMIT + 1)), MessageError);
  assert.throws(() => link.publish("x/+", utf8("all")), MessageError);
  assert.ok(await link.publish("x", new Uint8Array(MESSAGE_LIMIT)));
});

test("a full queue takes no more messages", { skip }, async (t) => {
  const broker = await start(t);
  const { link, eventsOf } = await connected(t, broker.url, "device", { queueLimit: 2, reconnectS: [30, 30] });
  await broker.stop();
  await until(() => eventsOf("disconnected").length === 1);
  link.publish("x", utf8("1"));
  link.publish("x", utf8("2"));
  assert.equal(await link.publish("x", utf8("3")), false);
  assert.equal(link.unacknowledged("x"), 2);
});

test("a compact message is sent at once or not at all", { skip }, async (t) => {
  const broker = await start(t);
  const reader = await connected(t, broker.url, "reader", { subscriptions: ["fl/v1/d/+/up/c"] });
  const { link, eventsOf } = await connected(t, broker.url, "device", { reconnectS: [0.3, 0.3] });
  assert.ok(await link.publish("fl/v1/d/device/up/c", Uint8Array.of(4)));
  assert.equal(link.bytesUp, 2 + 2 + 19 + 1);
  assert.equal(link.unacknowledged(), 0);
  await until(() => reader.eventsOf("received").length === 1);
  assert.equal(reader.link.bytesDown, link.bytesUp);
  await broker.stop();
  await until(() => eventsOf("disconnected").length === 1);
  assert.equal(await link.publish("fl/v1/d/device/up/c", Uint8Array.of(4)), false);
  assert.equal(link.unacknowledged(), 0);
});

test("messages of a burst all arrive, in order", { skip }, async (t) => {
  const broker = await start(t);
  const reader = await connected(t, broker.url, "reader", { subscriptions: ["x"] });
  const { link } = await connected(t, broker.webUrl, "device");
  const sent = Array.from({ length: 300 }, (_, at) => link.publish("x", utf8(`${at}`)));
  assert.ok((await Promise.all(sent)).every(Boolean));
  await until(() => reader.payloads("x").length === 300);
  assert.deepEqual(reader.payloads("x"), Array.from({ length: 300 }, (_, at) => `${at}`));
});

test("a wrong password is refused, with what to check", { skip }, async (t) => {
  const broker = await start(t, { users: { pi: "secret" } });
  const at = (user) => broker.webUrl.replace("//", `//${user}@`);
  const refused = async (url, subscriptions, says) => {
    const { link } = linked(t, url, "pi", { subscriptions });
    await assert.rejects(link.connect(), (error) => error instanceof BrokerRefused && says.test(error.message));
  };
  await refused(at("pi:guessed"), [], /user 'pi': wrong user name or password/);
  await refused(broker.webUrl, [], /a client without user name/);
  const { link } = await connected(t, at("pi:secret"), "pi", { subscriptions: ["fl/v1/d/pi/dn/#"] });
  assert.ok(await link.publish("fl/v1/d/pi/up/hello", utf8("hello")));
  assert.ok(!broker.webUrl.includes("secret") && !link.url.text.includes("secret"));
});

test("a refused subscription is reported with its topic", async (t) => {
  const server = createServer((socket) => {
    socket.on("data", (data) => {
      if (data[0] >> 4 === 1) socket.write(Uint8Array.of(0x20, 2, 0, 0)); // CONNACK: accepted
      if (data[0] >> 4 === 8) socket.write(Uint8Array.of(0x90, 4, data[2], data[3], 1, 0x80)); // SUBACK: one refused
    });
    socket.on("error", () => {});
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const { link } = linked(t, `mqtt://pi@127.0.0.1:${port}`, "pi", { subscriptions: ["mine/#", "others/#"] });
  await assert.rejects(link.connect(), {
    name: "BrokerRefused",
    message: /does not let user 'pi' read others\/#: check its access list/,
  });
  await link.close();
});

test("a connection that ends before its subscriptions are answered counts as no broker", async (t) => {
  let times = 0;
  const server = createServer((socket) => {
    socket.on("data", (data) => {
      if (data[0] >> 4 === 1) socket.write(Uint8Array.of(0x20, 2, 0, 0)); // CONNACK: accepted
      if (data[0] >> 4 !== 8) return;
      times += 1;
      if (times % 2) socket.destroy();
      else socket.write(Uint8Array.of(0x90, 3, data[2], data[3], 1)); // SUBACK
    });
    socket.on("error", () => {});
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const { link, eventsOf } = linked(t, `mqtt://127.0.0.1:${port}`, "pi", { subscriptions: ["mine/#"] });
  await assert.rejects(link.connect(), BrokerUnreachable);
  await link.connect();
  assert.deepEqual(eventsOf("connected"), [{ kind: "connected", first: true }]);
  await link.close();
});

test("connecting fails with the reason if nothing listens or answers, and may be tried again", { skip }, async (t) => {
  const nobody = linked(t, `mqtt://127.0.0.1:${await freePort()}`, "device");
  await assert.rejects(nobody.link.connect(), (error) => {
    return error instanceof BrokerUnreachable && /no broker answers at mqtt:.*refused/i.test(error.message);
  });
  const mute = createServer((socket) => socket.on("error", () => {})).listen(0, "127.0.0.1");
  await once(mute, "listening");
  t.after(() => mute.close());
  const { port } = /** @type {import("node:net").AddressInfo} */ (mute.address());
  const silent = linked(t, `mqtt://127.0.0.1:${port}`, "device", { timeoutS: 0.2 });
  await assert.rejects(silent.link.connect(), /timed out|connack timeout/);
  const hangsUp = createServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
  await once(hangsUp, "listening");
  t.after(() => hangsUp.close());
  const other = /** @type {import("node:net").AddressInfo} */ (hangsUp.address()).port;
  await assert.rejects(linked(t, `ws://127.0.0.1:${other}`, "device").link.connect(), /with MQTT under \/mqtt/);
  const broker = await start(t);
  const late = linked(t, broker.url.replace(/\d+$/, `${await freePort()}`), "late");
  await assert.rejects(late.link.connect(), BrokerUnreachable);
  await assert.rejects(late.link.connect(), BrokerUnreachable);
  assert.deepEqual(late.events, []);
});

test("MQTT 5 is used if the URL asks for it", { skip }, async (t) => {
  const broker = await start(t);
  const reader = await connected(t, broker.url, "reader", { subscriptions: ["x"] });
  const { link } = await connected(t, `${broker.webUrl}?mqtt=5`, "device", { subscriptions: ["y"] });
  assert.ok(await link.publish("x", utf8("five")));
  await until(() => reader.payloads("x").length === 1);
});

test("two clients of one name disconnect each other, and report it", { skip }, async (t) => {
  const broker = await start(t);
  const [first, other] = [await connected(t, broker.url, "twin"), await connected(t, broker.url, "twin")];
  const reasons = () => [...first.eventsOf("disconnected"), ...other.eventsOf("disconnected")].map((event) => event.reason);
  await until(() => reasons().some((reason) => reason.includes("is another client called 'twin'?")));
});

test("closing a link resolves waiting messages to false", { skip }, async (t) => {
  const broker = await start(t);
  const { link, eventsOf } = await connected(t, broker.url, "device", { reconnectS: [30, 30] });
  await broker.stop();
  await until(() => eventsOf("disconnected").length === 1);
  const waiting = link.publish("x", utf8("1"));
  await link.close();
  assert.equal(await waiting, false);
  assert.equal(link.unacknowledged(), 0);
});
