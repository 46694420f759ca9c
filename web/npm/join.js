/** A device as other programs use it: joins a task, keeps samples, predicts. `browser.js` and `node.js` say where. */

import { Agent } from "../device/agent.js";
import { own } from "../device/disk_owner.js";
import { DeviceModel } from "../device/engine.js";
import { enrolmentOf } from "../device/enrolment.js";
import { DeviceError } from "../device/errors.js";
import { firstConnection } from "../device/first_connection.js";
import { Link } from "../device/link.js";
import { prepare, sizeOf } from "../device/preparing.js";
import { wasmRuntime } from "../device/runtime.js";
import { Samples } from "../device/samples.js";
import { logSoftmax } from "../device/softmax.js";
import { checkDevice } from "../device/topics.js";
import { parseUrl } from "../device/url.js";

/**
 * Where a device runs: its disk, its machine (profile.js), and its way to the broker (Link).
 * @typedef {{disk: import("../device/disk.js").Disk, host: import("../device/profile.js").Host, transport: any}} Place
 */

/** See index.d.ts. */
export class TaskDevice {
  #agent;
  #link;
  #isStopped = false;
  #log;
  /** Resolves to the samples and the manifest, once the task is known. */
  #task;

  /** @param {any} options see index.d.ts @param {(name: string, authority: any) => Promise<Place>} placed */
  static async join(options, placed) {
    const identity = await identityOf(options);
    const { disk, host, transport } = await placed(identity.name, identity.authority);
    const tell = options.on ?? (() => {});
    const log = (/** @type {any} */ level, /** @type {string} */ text) => tell({ type: "log", level, text });
    await own(disk, identity.name, log);
    const runtime = await wasmRuntime({ threads: options.threads ?? 0 });
    /** @type {(task: any) => void} */
    let resolveTask = () => {};
    const task = new Promise((resolve) => {
      resolveTask = resolve;
    });
    const samples = async (/** @type {any} */ manifest) => {
      const stored = await new Samples(disk, manifest.input, manifest.labels).open();
      await begin(stored, options.samples ?? [], described(manifest));
      resolveTask({ stored, manifest });
      return stored;
    };
    const { name, key, secret, url, clientId } = identity;
    const agent = await Agent.open(
      { name, key, secret, task: options.task ?? "" },
      { clock: () => performance.now() / 1000, disk, host, samples, tell, open: async (bundle) => new DeviceModel(bundle, runtime) },
    );
    const { will, greeting, subscriptions } = agent;
    const link = new Link(url, clientId, (event) => agent.took(event), { will, greeting, subscriptions, log }, transport);
    agent.begin(link);
    return new TaskDevice(name, { agent, link, task, log }, options.untilDone ?? false);
  }

  /** @private @param {string} name @param {any} parts @param {boolean} untilDone */
  constructor(name, { agent, link, task, log }, untilDone) {
    this.name = name;
    this.#agent = agent;
    this.#link = link;
    this.#task = task;
    this.#log = log;
    /** Settles when the device has ended. */
    this.ended = this.#run(untilDone);
    this.ended.catch(() => {}); // whoever waits for it is told; nobody needs to
  }

  async #run(untilDone) {
    if (await firstConnection(this.#link, this.#log, () => this.#isStopped)) await this.#agent.run({ untilDone });
    await this.#link.close(this.#agent.farewell);
  }

  async task() {
    return described((await this.#task).manifest);
  }

  async add(label, values) {
    const { stored } = await this.#task;
    await stored.add(label, typed(values), Date.now());
    this.#agent.samplesChanged();
  }

  async clear(label) {
    const { stored } = await this.#task;
    await stored.clear(label ?? null);
    this.#agent.samplesChanged();
  }

  async counts() {
    const { stored } = await this.#task;
    return stored.counts();
  }

  async predict(values) {
    const { manifest } = await this.#task;
    const size = sizeOf(manifest.input.shape);
    if (values.length !== size) throw new DeviceError(`a sample has ${size} values, not ${values.length}`);
    const logits = await this.#agent.predict(prepare(manifest.input, typed(values)));
    if (!logits) return null;
    const shares = Array.from(logSoftmax(logits, logits.length), Math.exp);
    const guesses = shares.map((share, i) => ({ label: manifest.labels[i], share }));
    return guesses.sort((a, b) => b.share - a.share);
  }

  pause(why = "the program") {
    this.#agent.workGate.pause(why);
  }

  resume(why = "the program") {
    this.#agent.workGate.resume(why);
  }

  async leave() {
    this.#isStopped = true;
    this.#agent.stop();
    await this.ended;
  }
}

/** The broker's URL, and the device's name and keys. Throws EnrolmentError, UrlError, TopicError. */
async function identityOf({ token, broker, name, insecure = false }) {
  if (token) {
    const enrolled = await enrolmentOf(token);
    const { user, password } = enrolled.url;
    return broker ? { ...enrolled, url: { ...parseUrl(broker, { insecure }), user, password } } : enrolled;
  }
  if (!broker) throw new DeviceError("where is the broker? Give a token of `device add`, or the broker's URL and a name");
  const url = parseUrl(broker, { insecure });
  const device = checkDevice(name ?? url.user ?? "");
  return { url, name: device, clientId: device, key: new Uint8Array(), secret: new Uint8Array(), authority: undefined };
}

/** What a program is told of a task. */
const described = ({ name, labels, input }) => ({ name, labels: [...labels], shape: [...input.shape] });

/** Stores the samples to begin with, those of a label together, unless some are stored. */
async function begin(stored, samples, task) {
  if (stored.counts().some(({ training, held }) => training + held > 0)) return;
  /** @type {Map<string | number, number[]>} */
  const byLabel = new Map();
  for (const [label, values] of typeof samples === "function" ? await samples(task) : samples) {
    const all = byLabel.get(label) ?? [];
    for (const value of values) all.push(value);
    byLabel.set(label, all);
  }
  for (const [label, all] of byLabel) await stored.add(label, typed(all), Date.now());
}

/** Bytes stay bytes, other numbers become float32. @param {ArrayLike<number>} values */
function typed(values) {
  if (values instanceof Uint8ClampedArray) return new Uint8Array(values);
  return values instanceof Uint8Array || values instanceof Float32Array ? values : Float32Array.from(values);
}
