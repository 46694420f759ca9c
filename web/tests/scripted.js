/**
 * Stands for an aggregator and a link, in memory: sends a device what a test wants.
 */

import { Agent } from "../device/agent.js";
import { Bundle } from "../device/bundle.js";
import { sha256, utf8 } from "../device/bytes.js";
import { MemoryDisk } from "../device/disk.js";
import { DeviceModel } from "../device/engine.js";
import { Contribution, Get, Hello, Offer, Plan, Receipt, State, decode, encode, hexOf } from "../device/messages.js";
import { BLOCK } from "../device/partial_blob.js";
import { wasmRuntime } from "../device/runtime.js";
import { write } from "../device/safetensors.js";
import * as topics from "../device/topics.js";
import { files, packed } from "./shipped.js";

export const ZIP = packed(files("digits-wrn-10-1"));
const KINDS = { state: State, hello: Hello, plan: Plan, contribution: Contribution, get: Get };
const SAMPLES = 40;

/** Twenty training and five held-out samples of each of two classes, of arbitrary values. */
export const SAMPLES_HERE = {
  training: () => drawn(SAMPLES),
  held: () => drawn(10),
  count: () => SAMPLES,
};

function drawn(count) {
  const x = Float32Array.from({ length: 64 * count }, (_, i) => Math.sin(i * (1 + ((i >> 6) % 2))));
  return { x, y: Int32Array.from({ length: count }, (_, i) => i % 2), shape: [1, 8, 8] };
}

/**
 * The surroundings of a device. `offer` answers each hello; contributions get receipts while `receipting`.
 */
export class World {
  messages = [];
  events = [];
  offer = null;
  receipting = true;
  /** How many times slower the device is. */
  busy = 1;
  #contents = new Map();
  #agent = null;
  #now = 0;

  static async made() {
    const world = new World();
    world.bundle = await world.hold(ZIP);
    const weights = write((await Bundle.open(ZIP)).weights());
    world.weights = await world.hold(weights);
    world.base = { checkpoint: [world.weights], sha: world.weights.sha };
    return world;
  }

  /** Offer these bytes for download. @returns {Promise<any>} their blob */
  async hold(bytes, size = bytes.length) {
    const blob = { sha: await sha256(bytes), size };
    this.#contents.set(hexOf(blob), bytes);
    return blob;
  }

  /** Send other bytes for this blob. */
  swap(blob, bytes) {
    this.#contents.set(hexOf(blob), bytes);
  }

  /** An offer of this round; `more` replaces some of its fields. */
  round(number, more = {}) {
    const kinds = number ? [{ name: "class-means", settings: {} }] : [];
    const times = { deadline_s: 50, remaining_s: 50 };
    const { bundle, base } = this;
    return { task: "t", run: "r", round: number, seed: 5n, ...times, bundle, base, kinds, ...more };
  }

  /** A connected device on this disk. */
  async device({ disk = new MemoryDisk(), key, samples = SAMPLES_HERE } = {}) {
    const runtime = await wasmRuntime({ threads: 1 });
    const environment = {
      clock: () => (this.#now += 0.02 * this.busy),
      disk,
      open: async (bundle) => new DeviceModel(bundle, runtime),
      samples: async () => samples,
      host: { name: "here", cores: 1, totalBytes: 2 ** 32, limitBytes: () => 2 ** 31, residentBytes: () => 2 ** 20 },
      tell: (event) => this.events.push(event),
    };
    const agent = await Agent.open({ name: "dev", key }, environment);
    this.#agent = agent;
    const publish = (topic, payload) => setImmediate(() => this.#answer(topic, payload));
    agent.begin({ publish, unacknowledged: () => 0, bytesUp: 0, bytesDown: 0 });
    agent.took({ kind: "connected", first: true });
    return agent;
  }

  /** Let so many seconds pass. */
  pass(seconds) {
    this.#now += seconds;
  }

  /** Send a message to the device. */
  say(topic, payload, retain = false) {
    this.#agent.took({ kind: "received", topic, payload, retain });
  }

  tellAll(offer, retain = false) {
    this.say(topics.offer(offer.task), encode(Offer, offer), retain);
  }

  /** The device's messages on a leaf, in order. */
  of(leaf) {
    return this.messages.filter((message) => message.leaf === leaf);
  }

  /** The lines of the log that contain this text. */
  lines(part) {
    return this.events.filter((event) => event.type === "log" && event.text.includes(part));
  }

  /** Let the device work until the condition is met. */
  async until(agent, condition, steps = 20_000) {
    for (let step = 0; step < steps; step += 1) {
      if (condition()) return;
      await agent.step(0.002);
    }
    throw new Error(`not within ${steps} steps: ${condition}\n${this.events.map((event) => event.text).join("\n")}`);
  }

  #answer(topic, payload) {
    const { leaf, sha, index } = topics.parse(topic);
    const message = KINDS[leaf] ? decode(KINDS[leaf], payload) : { payload, sha, index };
    this.messages.push({ leaf, ...message });
    if (leaf === "hello" && this.offer) this.say(topics.down("dev", "task"), encode(Offer, this.offer));
    if (leaf === "get") this.#send(message);
    if (leaf === "contribution" && this.receipting) this.receipt(message);
  }

  receipt({ boot, seq, round }, status = "accepted") {
    this.say(topics.down("dev", "receipt"), encode(Receipt, { boot, seq, round, status }));
  }

  #send({ blob, blocks }) {
    const content = this.#contents.get(hexOf(blob));
    for (const index of content ? blocks : [-1]) {
      const part = content ? content.slice(index * BLOCK, Math.min(blob.size, (index + 1) * BLOCK)) : utf8("");
      this.say(topics.down("dev", topics.block(blob.sha, index)), part);
    }
  }
}
