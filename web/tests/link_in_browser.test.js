/** Tests the browser build of MQTT.js, with the parts of a browser that it needs: WebSocket and navigator. */
import assert from "node:assert/strict";
import { test } from "node:test";
import WebSocket from "ws";

import { text, utf8 } from "../device/bytes.js";
import { Link } from "../device/link.js";
import { parseUrl } from "../device/url.js";
import { inNode } from "../node/transport.js";
import { skip, start, until } from "./mosquitto.js";

Object.assign(globalThis, { WebSocket, navigator: { userAgent: "test", product: "Gecko" } });

/** A page's link that is closed at the end of the test, and its events. */
async function connected(t, url, name, options = {}, transport = undefined) {
  const events = [];
  const settings = { reconnectS: [0.05, 0.2], ...options };
  const link = new Link(parseUrl(url), name, (event) => events.push(event), settings, transport);
  t.after(() => link.close());
  await link.connect();
  return { link, received: () => events.filter((event) => event.kind === "received"), events };
}

test("a page connects, leaves its will when it is lost, and reconnects", { skip }, async (t) => {
  const broker = await start(t);
  const reader = await connected(t, broker.url, "reader", { subscriptions: ["up/#"] }, inNode());
  const options = { subscriptions: ["dn/#"], will: { topic: "up/state", payload: utf8("lost"), retain: true } };
  const page = await connected(t, broker.webUrl, "page", options);
  const block = new Uint8Array(64 * 1024).map((_, at) => at % 251);
  assert.ok(await page.link.publish("up/block", block));
  await reader.link.publish("dn/block", block);
  await until(() => reader.received().length === 1 && page.received().length === 1);
  assert.deepEqual(reader.received()[0].payload, block);
  assert.deepEqual(page.received()[0].payload, block);
  const rival = await connected(t, broker.url, "page", {}, inNode());
  await until(() => reader.received().some((event) => event.topic === "up/state" && text(event.payload) === "lost"));
  await rival.link.close();
  await until(() => page.events.filter((event) => event.kind === "connected").length > 1);
  assert.ok(await page.link.publish("up/again", utf8("here")));
});

test("a burst of blocks from a page arrives whole", { skip }, async (t) => {
  const broker = await start(t);
  const reader = await connected(t, broker.url, "reader", { subscriptions: ["up/#"] }, inNode());
  const page = await connected(t, broker.webUrl, "page");
  const blocks = Array.from({ length: 40 }, (_, at) => new Uint8Array(64 * 1024).fill(at));
  const sent = blocks.map((block, at) => page.link.publish(`up/${at}`, block));
  assert.ok((await Promise.all(sent)).every(Boolean));
  await until(() => reader.received().length === 40);
  assert.ok(reader.received().every((event, at) => event.payload.every((byte) => byte === at)));
});

test("a page whose broker refuses it, and one without a broker, get an error", { skip }, async (t) => {
  const broker = await start(t, { users: { pi: "secret" } });
  const link = new Link(parseUrl(broker.webUrl), "page", () => {});
  await assert.rejects(link.connect(), { name: "BrokerRefused" });
  await broker.stop();
  await assert.rejects(link.connect(), { name: "BrokerUnreachable", message: /WebSockets are served at this port/ });
});
