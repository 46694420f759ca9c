/** How this browser becomes a device: the one-time link, what is remembered of it, and a name. */

import { text, utf8 } from "../device/bytes.js";
import { enrolmentOf } from "../device/enrolment.js";

const KEY = "joined";
const CONFIG = new URL("../config.json", import.meta.url);
const ENROL = new URL("../enrol", import.meta.url);
const CLAIM_BYTES = 32;

/**
 * @typedef {import("../crossing.js").Settings} Settings
 * @typedef {{name: string, input: import("../device/preparing.js").InputSpec, labels: string[]}} Task as told
 *   before the model is here
 * @typedef {{enrolment: "link" | "open", broker: {url: string, user: string, password: string},
 *   gateway: string, key: string, tasks: Task[]}} Config `gateway`: where, beside this, the broker is reached
 * @typedef {{settings: Settings, tasks: Task[]}} Joined
 */

/** What an earlier visit has left. @returns {Promise<Joined | null>} */
export async function remembered(disk) {
  const kept = await disk.get(KEY);
  return kept && JSON.parse(text(kept));
}

/** @param {Joined} joined */
export async function remember(disk, joined) {
  await disk.put(KEY, utf8(JSON.stringify(joined)));
}

export async function forget(disk) {
  await disk.delete(KEY);
}

/**
 * A one-time link: its secret, taken out of the address bar, and the claim that makes it this browser's. A reload
 * still knows both. @returns {{secret: string, claim: string} | null}
 */
export function linkOfAddress() {
  const secret = new URLSearchParams(location.hash.slice(1)).get("link");
  const link = secret ? { secret, claim: drawn(CLAIM_BYTES) } : (history.state?.link ?? null);
  history.replaceState(link && { link }, "", location.pathname + location.search);
  return link;
}

/** The 14 MB that will be needed come while the form is read. */
export function fetchAhead() {
  fetch(new URL("../vendor/ort/ort-wasm-simd-threaded.wasm", import.meta.url)).catch(() => {}); // later, then
}

/** It was used. */
export const dropLink = () => history.replaceState(null, "");

/** @returns {Promise<Config>} Throws Error in plain words. */
export async function configuration() {
  return answered(CONFIG, {});
}

/** With the broker where it is now: one that was started anew may be elsewhere. @param {Joined} joined */
export async function refreshed(joined) {
  if (joined.settings.token) return joined; // it says where
  const config = await configuration().catch(() => null);
  if (config?.enrolment !== "open") return joined;
  return { ...joined, settings: { ...joined.settings, broker: brokerOf(config), key: config.key } };
}

/**
 * Become a device: by the link where one is needed.
 * @param {Config} config
 * @param {{name: string, link: {secret: string, claim: string} | null}} who
 * @returns {Promise<Joined>} Throws Error in plain words.
 */
export async function join(config, { name, link }) {
  const tasks = config.tasks.filter((task) => task.input?.shape);
  const settings = { name, token: "", broker: brokerOf(config), key: config.key, task: "" };
  if (config.enrolment === "open") return { tasks, settings };
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(link) };
  const { token } = await answered(ENROL, post);
  return { tasks, settings: { ...settings, token, name: (await enrolmentOf(token)).name } };
}

/** @param {Config} config @returns {import("../crossing.js").Broker} */
function brokerOf({ broker, gateway }) {
  const here = gateway ? new URL(gateway, CONFIG).href.replace(/^http/, "ws") : "";
  return { ...broker, gateway: here };
}

async function answered(url, options) {
  const answer = await fetch(url, { cache: "no-store", credentials: "omit", ...options }).catch(() => {
    throw new Error("The server does not answer: is this device in the same network?");
  });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(`The server says no (${answer.status}): ${said.detail ?? "no reason given"}.`);
  return said;
}

/** A name that says nothing of who owns the device. @param {string} agent navigator.userAgent */
export function suggestedName(agent) {
  const kind = /iPad|Tablet/.test(agent) ? "tablet" : /Mobi|iPhone|Android/.test(agent) ? "phone" : "browser";
  return `${kind}-${drawn(4)}`;
}

/** Random hex digits. @param {number} count bytes */
function drawn(count) {
  return Array.from(crypto.getRandomValues(new Uint8Array(count)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
