/** Runs the device in a worker: does what the page asks for, and reports events to it. See rpc.js. */

import { Agent } from "./device/agent.js";
import { fromHex } from "./device/bytes.js";
import { own } from "./device/disk_owner.js";
import { DeviceModel } from "./device/engine.js";
import { enrolmentOf } from "./device/enrolment.js";
import { EngineUnloaded, oneLine } from "./device/errors.js";
import { firstConnection } from "./device/first_connection.js";
import { browserHost } from "./device/host.js";
import { Link } from "./device/link.js";
import { runtimeFor } from "./device/providers.js";
import { wasmRuntime } from "./device/runtime.js";
import { Samples } from "./device/samples.js";
import { logSoftmax } from "./device/softmax.js";
import { checkDevice } from "./device/topics.js";
import { parseUrl } from "./device/url.js";
import { openDisk } from "./page/disk_indexeddb.js";
import { DEVICE, SAMPLES } from "./rpc.js";

/** @typedef {import("./rpc.js").Settings} Settings */

const clock = () => performance.now() / 1000;
const tell = (/** @type {import("./rpc.js").WorkerMessage} */ message) => postMessage(message);
const log = (/** @type {any} */ level, /** @type {string} */ text) => tell({ type: "log", level, text });
/** Why there has been no connection yet. */
const unconnected = (/** @type {any} */ level, /** @type {string} */ reason) => {
  log(level, reason);
  tell({ type: "link", connected: false, reason });
};
/** Reasons to pause, also those from before the device was opened. @type {Set<string>} */
const pauses = new Set();

/** @type {{percent: number, plugged: boolean} | null} */
let battery = null;
/** @type {Device | null} */
let device = null;

class Device {
  /** @param {Settings} settings */
  static async open(settings) {
    const { name, url, clientId, key, secret } = await whoOf(settings);
    const store = { samples: /** @type {Samples | null} */ (null) };
    let tokenizer = "";
    const [disk, samples] = [await openDisk(DEVICE), await openDisk(SAMPLES)];
    await own(disk, name, log);
    const environment = {
      clock,
      disk,
      open: async (/** @type {any} */ bundle) => {
        ({ tokenizer } = bundle);
        return new DeviceModel(bundle, await runtimeOf(bundle));
      },
      samples: async (/** @type {any} */ { input, labels }) => {
        store.samples = new Samples(samples, input, labels);
        return store.samples.open();
      },
      host: browserHost(name, navigator, () => battery),
      tell: (/** @type {any} */ happening) => tell(plain(happening, tokenizer)),
    };
    const agent = await Agent.open({ name, key, secret, task: settings.task }, environment);
    const { will, greeting, subscriptions } = agent;
    const link = new Link(url, clientId, (event) => agent.took(event), { will, greeting, subscriptions, log });
    agent.begin(link);
    return new Device({ agent, link, kept: store });
  }

  /** @param {{agent: Agent, link: Link, kept: {samples: Samples | null}}} parts */
  constructor({ agent, link, kept: store }) {
    this._agent = agent;
    this._link = link;
    this._kept = store;
    this._left = false;
    this._early = (/** @type {unknown} */ _event = null) => {};
  }

  /** Run until the device leaves. Throws errors that end it. */
  async run() {
    addEventListener("online", () => this.retry());
    const early = () => new Promise((resolve) => (this._early = resolve));
    if (await firstConnection(this._link, unconnected, () => this._left, early)) await this._agent.run();
  }

  /** Connect at once, if the device only waits for its next attempt. */
  retry() {
    this._early();
    this._link.retry();
  }

  /** The work gate; see work_gate.js. */
  get workGate() {
    return this._agent.workGate;
  }

  /** @param {string[]} keys */
  async samplesChanged(keys) {
    await this._kept.samples?.refresh(keys);
    this._agent.samplesChanged();
  }

  /** A share for each label; null if there is no model. @param {Float32Array} x one prepared sample */
  async guess(x) {
    const logits = await this._agent.predict(x);
    return logits && Array.from(logSoftmax(logits, logits.length), Math.exp);
  }

  async leave() {
    this._left = true;
    this._agent.stop();
    await this._link.close(this._agent.farewell);
  }
}

/**
 * The broker's URL, and the device's name and keys. Throws EnrolmentError, UrlError, TopicError.
 * @param {Settings} settings
 */
async function whoOf({ name, token, broker, key }) {
  const enrolled = token ? await enrolmentOf(token) : null;
  const { user, password } = enrolled?.url ?? broker;
  const present = broker.gateway || broker.url; // the token's is of the day it was made
  const url = { ...(present || !enrolled ? parseUrl(present) : enrolled.url), user, password };
  return enrolled ? { ...enrolled, url } : { name: checkDevice(name), clientId: name, key: fromHex(key), secret: new Uint8Array(), url };
}

/** Loads the runtime while the device connects; `runtimeOf` tells of an error. */
const loaded = wasmRuntime().catch(() => {});

/** The runtime. Tells the page if it cannot be loaded, as only another worker can try again. @param {any} bundle */
async function runtimeOf(bundle) {
  try {
    await loaded; // the library makes one session at a time
    return await runtimeFor(bundle);
  } catch (error) {
    if (error instanceof EngineUnloaded) tell({ type: "unloaded", text: oneLine(error) });
    throw error;
  }
}

/** An event that can be sent: of a manifest, only what the page needs. @param {any} happening @param {string} tokenizer */
function plain(happening, tokenizer) {
  if (happening.type !== "task") return happening;
  const { name, input, labels } = happening.manifest;
  return { ...happening, manifest: { name, input: { ...input }, labels: [...labels], tokenizer } };
}

/** @type {{[what: string]: (asked: any) => Promise<void> | void}} */
const DO = {
  start: async ({ settings }) => {
    device = await Device.open(settings);
    for (const why of pauses) device.workGate.pause(why);
    await device.run();
  },
  pause: ({ why }) => {
    pauses.add(why);
    device?.workGate.pause(why);
  },
  resume: ({ why }) => {
    pauses.delete(why);
    device?.workGate.resume(why);
    device?.retry(); // a page that was hidden has often lost its connection
  },
  battery: ({ percent, plugged }) => {
    battery = { percent, plugged };
  },
  samples: ({ keys }) => device?.samplesChanged(keys),
  guess: async ({ number, x }) => {
    const shares = await device?.guess(x).catch(() => null);
    tell({ type: "guessed", number, shares: shares ?? null });
  },
  leave: async () => {
    await device?.leave();
    tell({ type: "left" });
  },
};

onmessage = async ({ data }) => {
  try {
    await DO[data.do](data);
  } catch (error) {
    if (data.do === "start") tell({ type: "stopped", text: oneLine(error) });
    else log("warning", oneLine(error)); // the device goes on
  }
};
