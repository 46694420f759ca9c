/** The page: joins, starts the device, and passes its events to the sections. */

import { Samples } from "../device/samples.js";
import { Texts, tokenizerOf } from "../device/tokenizer.js";
import { DEVICE, SAMPLES } from "../rpc.js";
import { joinedBy, sure } from "./asking.js";
import { Device } from "./device.js";
import { deleteDisk, openDisk } from "./disk_indexeddb.js";
import { byId, say } from "./dom.js";
import { checkVersion, configuration, dropPage, forget, isReady, keepPage, refreshed, remember, remembered } from "./joining.js";
import { Learning } from "./learning.js";
import { linkOfAddress, linkUsed } from "./link.js";
import { plainly } from "./meaning.js";
import { forgetHelped, Now, showDevice } from "./now.js";
import { showStored } from "./stored.js";
import { Teaching } from "./teaching.js";
import { Waiting } from "./waiting.js";
import { OWNER, PageWorkRules, persist, savesData } from "./work_rules.js";

/** Where this browser keeps whether the details are open. */
const DETAILS = "device-runtime details";
/** Milliseconds until the page's files are kept although nothing has been contributed. */
const KEEP_MS = 20_000;
/** Milliseconds between looks at how long the device has waited. */
const LOOK_MS = 1000;

/** Shows an error. @param {string} text empty: removes the last one */
function trouble(text) {
  byId("trouble").hidden = !text;
  say(byId("trouble"), text);
}

class Page {
  /** @param {import("./disk_indexeddb.js").IndexedDbDisk} disk of samples @param {import("./joining.js").Joined} joined */
  constructor(disk, { settings, tasks }) {
    this._disk = disk;
    this._settings = settings;
    this._tasks = tasks;
    this._paused = new Set();
    this._now = new Now();
    this._learning = new Learning();
    this._waiting = new Waiting(new Date());
    this._about = null;
    this._persisted = false;
    this._left = false;
    this._keeps = false;
    /** @type {{input: any, labels: string[]} | null} */
    this._model = null;
    this._device = new Device(settings, (message) => this._hear(message).catch((error) => trouble(error.message)));
    this._workRules = new PageWorkRules({
      pause: (why) => this._pause(why),
      resume: (why) => this._resume(why),
      battery: (percent, plugged) => this._device.ask({ do: "battery", percent, plugged }),
      said: (what, text) => say(byId({ battery: "manners", data: "data" }[what]), text),
    });
    this._wire();
    setInterval(() => this._showWaiting(), LOOK_MS);
    this._showTask(tasks.length === 1 ? tasks[0] : null);
    if (tasks.length === 1 && isReady(tasks[0])) this._begin(tasks[0]).catch((error) => trouble(error.message));
  }

  async _wire() {
    byId("board").hidden = byId("controls").hidden = false;
    connection(null);
    showDetails(localStorage.getItem(DETAILS) === "open");
    byId("more").addEventListener("click", () => {
      showDetails(byId("details").hidden);
      if (!byId("details").hidden) byId("details").scrollIntoView({ block: "start" });
    });
    byId("pause").addEventListener("click", () => (this._paused.has(OWNER) ? this._resume(OWNER) : this._pause(OWNER)));
    const deeds = { leave: () => this._leave(), forget: () => this._forget(), clear: () => this._clear() };
    for (const [id, deed] of Object.entries(deeds)) {
      byId(id).addEventListener("click", () => deed().catch((error) => trouble(error.message)));
    }
    this._showDevice();
    say(byId("opens"), "This page needs a network to open, so far.");
    setTimeout(() => this._keep(), KEEP_MS);
    this._persisted = await persist();
    this._showDevice();
  }

  /** Keeps the page's files, which takes the time of a first contribution: hence after it, or after a while. */
  _keep() {
    if (this._keeps || savesData()) return;
    this._keeps = true;
    keepPage().then((isKept) => isKept && say(byId("opens"), "This page opens without a network, too."));
  }

  /** What the task is, in its own words. @param {any} task of the server's settings, or an offer; null: not known */
  _showTask(task) {
    if (!task) return;
    const { name, title = "", about = "", ask = "" } = task;
    this._task = { name, title, about, ask };
    byId("task").hidden = !(about || ask);
    const texts = { title: title || name, "task-head": title || name, "task-about": about, "task-ask": ask, question: ask || "What is it?" };
    for (const [id, text] of Object.entries(texts)) say(byId(id), text);
  }

  /** The task's samples can be made at the next opening, also without a network. */
  async _remember(manifest) {
    if (this._left) return;
    await remember(this._disk, { settings: this._settings, tasks: [{ ...manifest, ...this._task }] });
  }

  /** The server may have been replaced by a newer one meanwhile. */
  async _reconnected() {
    const config = await configuration().catch(() => null);
    if (config) checkVersion(config);
  }

  async _hear(message) {
    this._now.hear(message);
    this._waiting.hear(message, new Date());
    this._showWaiting();
    this._keepAwake();
    if (message.type === "receipt") this._keep();
    if (message.type === "link") connection(message.connected);
    if (message.type === "link" && message.connected) await this._reconnected();
    if (message.type === "log" && message.level !== "info") say(byId("notice"), `${plainly(message.text)}.`);
    if (message.type === "unloaded") say(byId("notice"), message.text && `${message.text}.`);
    if (message.type === "stopped") trouble(`The device has stopped: ${message.text}. Reload the page to start it again.`);
    if (["plan", "receipt"].includes(message.type) || (message.type === "link" && message.connected)) say(byId("notice"), "");
    if (message.type === "task") this._about = message;
    if (message.type === "offer") this._showTask({ ...this._task, ...message, name: message.task });
    if (["task", "traffic", "receipt"].includes(message.type)) this._showDevice();
    if (message.type === "task") {
      await this._begin(message.manifest);
      await this._remember(message.manifest);
    }
    if (message.type === "evaluated" && this._model) this._learning.evaluated(message, this._model.labels.length);
    if (["task", "evaluated"].includes(message.type)) await this._teaching?.again();
  }

  /** The task's input and labels are known: samples can be made from here on. */
  async _begin({ input: plain, labels, tokenizer = "" }) {
    const input = tokenizer ? { ...plain, texts: new Texts(plain, tokenizerOf(tokenizer)) } : plain;
    if (this._model && sameSamples({ input, labels }, this._model)) return;
    this._model = { input, labels };
    const samples = await new Samples(this._disk, input, labels).open();
    this._samples = samples;
    this._teaching?.close();
    this._teaching = new Teaching({
      samples,
      spec: input,
      guess: (x) => this._device.guess(x),
      changed: () => this._changed(samples),
      trouble,
    });
    this._showStored();
  }

  _showDevice() {
    showDevice(this._about, { name: this._settings.name, persisted: this._persisted, totals: this._now.totals });
  }

  /** @param {Samples} samples */
  _changed(samples) {
    trouble("");
    this._showStored();
    this._device.ask({ do: "samples", keys: samples.touched() });
  }

  _showStored() {
    showStored(this._samples, this._model?.input, { removed: () => this._changed(this._samples), sure, trouble });
  }

  _showWaiting() {
    const samples = () => this._samples?.counts().reduce((sum, { training, held: holdout }) => sum + training + holdout, 0) ?? null;
    say(byId("waiting"), this._waiting.text(new Date(), { paused: this._paused.size > 0, samples }));
  }

  _pause(why) {
    this._paused.add(why);
    this._device.ask({ do: "pause", why });
    this._showPaused();
  }

  _resume(why) {
    if (!this._paused.delete(why)) return;
    this._device.ask({ do: "resume", why });
    this._showPaused();
  }

  /** The screen stays on while something is computed. */
  _keepAwake() {
    this._workRules?.training(this._now.training && this._paused.size === 0); // a page that is hidden pauses first
  }

  _showPaused() {
    this._keepAwake();
    const own = this._paused.has(OWNER);
    byId("pause").setAttribute("aria-pressed", String(own));
    say(byId("pause"), own ? "Go on" : "Pause");
    this._now.paused([...this._paused]);
  }

  async _clear() {
    if (!(await sure("Delete all samples of this task that are stored in this browser?"))) return;
    try {
      await this._samples.clear();
    } finally {
      this._changed(this._samples); // also if only some were deleted
    }
  }

  async _leave() {
    const byLink = "Leave the task? A link is good for one browser once: to come back, this one needs another link.";
    if (this._settings.token && !(await sure(byLink, "Leave", "Stay"))) return;
    this._left = true;
    this._teaching?.close();
    await this._device.leave();
    await forget(this._disk);
    location.reload();
  }

  async _forget() {
    if (!(await sure("Leave the task, and delete everything that this page has stored: samples, model, name?"))) return;
    this._left = true;
    this._teaching?.close();
    await this._device.leave();
    this._disk.close();
    forgetHelped();
    await Promise.all([deleteDisk(SAMPLES), deleteDisk(DEVICE), dropPage()]);
    location.reload();
  }
}

/** Whether samples are made and shown alike. @param {{input: any, labels: string[]}} one @param {{input: any, labels: string[]}} other */
function sameSamples(first, other) {
  const textOf = ({ input, labels }) => JSON.stringify([input.shape, input.scale, Array.from(input.mean ?? []), Array.from(input.std ?? []), labels, input.window, Boolean(input.texts)]);
  return textOf(first) === textOf(other);
}

/** @param {boolean} open */
function showDetails(open) {
  byId("details").hidden = !open;
  byId("more").setAttribute("aria-expanded", String(open));
  localStorage.setItem(DETAILS, open ? "open" : "");
}

/** Shows whether the device is connected. @param {boolean | null} on null: not yet */
function connection(on) {
  const pill = byId("connection");
  pill.hidden = false;
  pill.className = `pill ${on === null ? "" : on ? "good" : "bad"}`;
  say(pill, on === null ? "connecting …" : on ? "connected" : "offline");
}

async function start() {
  const disk = await openDisk(SAMPLES);
  const { link, anew } = await linkOfAddress(disk);
  const before = anew ? null : await remembered(disk);
  const joined = before ? await refreshed(before) : await joinedBy(link, trouble);
  await remember(disk, joined);
  if (!before) await linkUsed(disk, link);
  new Page(disk, joined);
}

/** Starts the page if no other tab of this browser is the device. */
function alone() {
  if (!globalThis.isSecureContext) return trouble("Open this page by https: otherwise the browser denies functions that a device needs.");
  return navigator.locks.request("device-runtime", { ifAvailable: true }, (lock) => {
    if (!lock) return trouble("This device is open in another tab: close that one, or this one.");
    start().catch((error) => trouble(error.message));
    return new Promise(() => {}); // holds the lock as long as the page is open
  });
}

alone();
