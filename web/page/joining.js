/** Makes this browser a device, and remembers that it is one. */

import { hex, text, utf8 } from "../device/bytes.js";
import { enrolmentOf } from "../device/enrolment.js";
import { VERSION } from "../device/messages.js";
import { drawn, dropLink } from "./link.js";
import { savesData } from "./work_rules.js";

const KEY = "joined";
const CONFIG = new URL("../config.json", import.meta.url);
const ENROL = new URL("../enrol", import.meta.url);
const OFFLINE = new URL("../offline.js", import.meta.url);
/** The cache of offline.js. */
const CACHE = "device-runtime-page";
/** Milliseconds that a page which is a device already waits for the server's settings. */
const REFRESH_MS = 5_000;

/**
 * @typedef {import("../rpc.js").Settings} Settings
 * @typedef {{name: string, title?: string, about?: string, ask?: string, model_bytes?: number, labels: string[],
 *   over?: boolean, input: import("../device/preparing.js").InputSpec}} Task what the page knows of a task before the model is here
 * @typedef {{enrolment: "link" | "open", protocol?: number, page_bytes?: number, broker: {url: string, user: string, password: string},
 *   gateway: string, key: string, tasks: Task[]}} Config `gateway`: the broker's address relative to config.json;
 *   `page_bytes`: of the page's files as they are sent; `model_bytes`: what is fetched before a first round
 * @typedef {{settings: Settings, tasks: Task[]}} Joined
 */

/** The settings that an earlier visit has stored. @returns {Promise<Joined | null>} */
export async function remembered(disk) {
  const bytes = await disk.get(KEY);
  return bytes && JSON.parse(text(bytes));
}

/** @param {Joined} joined */
export async function remember(disk, joined) {
  await disk.put(KEY, utf8(JSON.stringify(joined)));
}

export async function forget(disk) {
  await disk.delete(KEY);
  await dropLink(disk);
}

/** Whether the task's model is known, so that samples can be made. @param {Task} task */
export const isReady = (task) => Boolean(task.input?.shape);

/** Loads the runtime, which will be needed, while the user reads the form; not where data is to be saved. */
export function fetchAhead() {
  if (savesData()) return;
  fetch(new URL("../vendor/ort/ort-wasm-simd-threaded.wasm", import.meta.url)).catch(() => {}); // loaded later
}

/** @param {RequestInit} [options] of the request @returns {Promise<Config>} Throws Error in plain words. */
export async function configuration(options = {}) {
  return answered(CONFIG, options);
}

/** Throws Error, in plain words, if the server's messages are of another version than this page's. */
export function checkVersion(/** @type {Config} */ { protocol = VERSION }) {
  if (protocol === VERSION) return;
  const older = "The server is newer than this page. Reload the page while the network is good: it then comes anew.";
  throw new Error(protocol > VERSION ? older : "The server is older than this page: ask the organisers to update it.");
}

/** Keeps the files of the page, so that it opens without a network. Resolves when they are kept, or cannot be now. */
export async function keepPage() {
  const workers = navigator.serviceWorker; // undefined in private windows of some browsers
  const registration = await workers?.register(OFFLINE).catch(() => null);
  if (!registration) return false;
  await workers.ready;
  return true;
}

/** Deletes the files of the page that this browser keeps. */
export async function dropPage() {
  const workers = (await navigator.serviceWorker?.getRegistrations()) ?? [];
  await Promise.all(workers.map((worker) => worker.unregister()));
  await globalThis.caches?.delete(CACHE);
}

/**
 * What is stored, with the tasks and the broker's address as they are now, if the server answers.
 * Throws Error if the server's messages are of another version. @param {Joined} joined
 */
export async function refreshed(joined) {
  const config = await configuration({ signal: AbortSignal.timeout(REFRESH_MS) }).catch(() => null);
  if (!config) return joined;
  checkVersion(config);
  if (config.enrolment !== "open" && !joined.settings.token) return joined;
  const tasks = config.tasks.some(isReady) ? config.tasks : joined.tasks;
  return { tasks, settings: { ...joined.settings, broker: brokerOf(config), key: config.key } };
}

/**
 * Become a device, by the link if one is needed.
 * @param {Config} config
 * @param {{name: string, link: import("./link.js").Link | null}} who
 * @returns {Promise<Joined>} Throws Error in plain words.
 */
export async function join(config, { name, link }) {
  const { tasks } = config;
  const settings = { name, token: "", broker: brokerOf(config), key: config.key, task: "" };
  if (config.enrolment === "open") return { tasks, settings };
  const token = link.token || (await exchanged(link));
  const enrolment = await enrolmentOf(token);
  if (config.key && hex(enrolment.key) !== config.key) {
    throw new Error("This link is of another aggregator than this page: ask the person who gave it to you.");
  }
  return { tasks, settings: { ...settings, token, name: enrolment.name } };
}

/** Exchanges a one-time link for a token. @param {import("./link.js").Link} link @returns {Promise<string>} */
async function exchanged({ secret, claim }) {
  const headers = { "Content-Type": "application/json" };
  const { token } = await answered(ENROL, { method: "POST", headers, body: JSON.stringify({ secret, claim }) });
  return token;
}

/** @param {Config} config @returns {import("../rpc.js").Broker} */
function brokerOf({ broker, gateway }) {
  const here = gateway ? new URL(gateway, CONFIG).href.replace(/^http/, "ws") : "";
  return { ...broker, gateway: here };
}

async function answered(url, options) {
  const answer = await fetch(url, { cache: "no-store", credentials: "omit", ...options }).catch(() => {
    const offline = "This device has no network: join when it is back.";
    throw new Error(navigator.onLine === false ? offline : "The server does not answer: is this device in the same network?");
  });
  const reply = await answer.json().catch(() => ({}));
  if (answer.status === 410) throw new Error(`${capital(reply.detail ?? "this link is not valid any more")}: ask the organisers for another link.`);
  if (!answer.ok) throw new Error(`The server says no (${answer.status}): ${reply.detail ?? "no reason given"}.`);
  return reply;
}

const capital = (/** @type {string} */ words) => words.charAt(0).toUpperCase() + words.slice(1);

/** A name that tells nothing about the owner. @param {string} agent navigator.userAgent */
export function suggestedName(agent) {
  const kind = /iPad|Tablet/.test(agent) ? "tablet" : /Mobi|iPhone|Android/.test(agent) ? "phone" : "browser";
  return `${kind}-${drawn(4)}`;
}
