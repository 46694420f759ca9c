/** Tests a link whose library or broker is slow, on a transport that the test delays. */
import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";

import { BrokerUnreachable } from "../device/errors.js";
import { Link } from "../device/link.js";
import { parseUrl } from "../device/url.js";

const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Stands for MQTT.js: each load waits until the test resolves it; brokers accept everything. */
class Held {
  clients = [];
  loads = [];
  transport = () => new Promise((resolve, reject) => this.loads.push({ resolve: () => resolve(this.#connect), reject }));

  #connect = () => {
    const client = Object.assign(new EventEmitter(), { connected: true, end: () => {}, publish: () => {} });
    this.clients.push(client);
    return client;
  };
}

/** A link over it, its events, and errors that nobody caught. */
function linked(t, options = {}) {
  const transport = new Held();
  const [events, uncaught] = [[], []];
  const caught = (error) => uncaught.push(error);
  process.on("unhandledRejection", caught);
  t.after(() => process.off("unhandledRejection", caught));
  const settings = { timeoutS: 0.02, reconnectS: [0.001, 0.001], ...options };
  const link = new Link(parseUrl("ws://127.0.0.1:1/mqtt"), "pi", (event) => events.push(event), settings, transport.transport);
  t.after(() => link.close());
  return { link, transport, events, uncaught };
}

test("a link whose library does not load in time fails once, at `connect`, as if no broker answered", async (t) => {
  const { link, transport, uncaught } = linked(t);
  const late = await link.connect().catch((error) => error);
  assert.ok(late instanceof BrokerUnreachable);
  assert.match(late.message, /no broker answers at ws:.*timed out/);
  transport.loads[0].resolve();
  await turn();
  assert.deepEqual([transport.clients.length, uncaught], [0, []]);
});

test("a library that loads late, after a second request for it, makes only one connection", async (t) => {
  const { link, transport, events, uncaught } = linked(t);
  await assert.rejects(link.connect(), BrokerUnreachable);
  const again = link.connect();
  transport.loads[0].resolve();
  transport.loads[1].resolve();
  await turn();
  assert.equal(transport.clients.length, 1);
  transport.clients[0].emit("connect");
  await again;
  assert.deepEqual([events, uncaught], [[{ kind: "connected", first: true }], []]);
});

test("a library that cannot be loaded counts as an unreachable broker, with the reason", async (t) => {
  const { link, transport, uncaught } = linked(t, { timeoutS: 5 });
  const connecting = link.connect();
  transport.loads[0].reject(new TypeError("Failed to fetch dynamically imported module"));
  await assert.rejects(connecting, (error) => {
    return error instanceof BrokerUnreachable && /failed to fetch dynamically/.test(error.message);
  });
  assert.deepEqual(uncaught, []);
});

test("a link that is closed while it reconnects stays closed", async (t) => {
  const { link, transport, events } = linked(t, { timeoutS: 5 });
  const connecting = link.connect();
  transport.loads[0].resolve();
  await turn();
  transport.clients[0].emit("connect");
  await connecting;
  transport.clients[0].emit("close");
  while (transport.loads.length < 2) await turn();
  await link.close();
  transport.loads[1].reject(new TypeError("gone"));
  for (let waited = 0; waited < 20; waited += 1) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.equal(transport.loads.length, 2);
  assert.deepEqual(events.map((event) => event.kind), ["connected", "disconnected"]);
});
