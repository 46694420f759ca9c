/**
 * The browser's decoders, fed through stdin; see fuzz_browser.py. An input is the name of its decoder and its
 * bytes, each with its length before it (uint32, little-endian). The answer: a byte (0 refused, 1 read, 2 another
 * error than the house's own), how long it took (float64, seconds), by how much memory grew (float64, bytes),
 * then what was read or why not, with its length before it.
 */
import { readZip } from "../web/device/archive.js";
import { readArrays } from "../web/device/arrays.js";
import { Bundle } from "../web/device/bundle.js";
import { hex, text, utf8, view } from "../web/device/bytes.js";
import { decodeOffer, fullContribution, fullOffer, splitMac } from "../web/device/compact_round.js";
import { checkManifest } from "../web/device/consistency.js";
import { DeviceError, TopicError, oneLine } from "../web/device/errors.js";
import { make } from "../web/device/kinds/registry.js";
import { readManifest } from "../web/device/manifest.js";
import * as messages from "../web/device/messages.js";
import { outside } from "../web/device/outside.js";
import { fields } from "../web/device/protobuf.js";
import { read, write } from "../web/device/safetensors.js";
import * as stepLog from "../web/device/step_log.js";
import * as topics from "../web/device/topics.js";

const HEAD = 21;
const SHAPE = [1, 8, 8];
const { Contribution, Offer, decode, encode } = messages;
const KINDS = ["State", "Hello", "Offer", "Signed", "Plan", "Contribution", "Receipt", "Get", "FromDevice"];
/** The offer and the contribution before those in few bytes. @type {Map<string, any>} */
const before = new Map();

/** The bits of a float64, by which NaN is itself. */
function bits(value) {
  const word = new DataView(new ArrayBuffer(8));
  word.setFloat64(0, value);
  return Number.isNaN(value) ? "nan" : word.getBigUint64(0).toString();
}

const jsonOf = (value) =>
  utf8(JSON.stringify(value, (_, inner) => (typeof inner === "bigint" ? String(inner) : inner instanceof Uint8Array ? hex(inner) : inner)));

const stepsTold = (list) =>
  jsonOf(list.map((step) => [step.round, step.generator, String(step.seed), step.tunable, bits(step.lr), bits(step.share), step.scalars.map(bits)]));

/** The library's, which gives texts, has seen to that. */
function topicOf(data) {
  try {
    return text(data);
  } catch {
    throw new TopicError("not UTF-8");
  }
}

/** What each gives, in bytes that the other side can compare. @type {Record<string, (data: Uint8Array) => any>} */
const DECODERS = {
  ...Object.fromEntries(KINDS.map((name) => [name, (data) => encode(messages[name], decode(messages[name], data))])),
  "offer or signed": (data) => encode(Offer, messages.offerIn(data)),
  topic: (data) => {
    const { device, leaf, sha, index } = topics.parse(topicOf(data));
    return jsonOf([device, leaf, hex(sha), index]);
  },
  safetensors: (data) => write(read(data)),
  manifest: async (data) => {
    const manifest = await readManifest(data);
    checkManifest(manifest);
    return jsonOf(manifest);
  },
  "bundle zip": (data) => jsonOf([...readZip(data)].map(([name, content]) => [name, content.length])),
  bundle: async (data) => utf8((await Bundle.open(data)).manifest.name),
  protobuf: (data) => jsonOf([...fields(data)].map(({ number, content, encoded }) => [number, content.length, encoded.length])),
  "onnx graph": (data) => jsonOf(outside(data).names),
  steps: async (data) => stepsTold(await stepLog.decode(data)),
  "next round": async (data) => encode(Offer, await fullOffer(before.get("Offer"), decodeOffer(splitMac(data).content))),
  "short contribution": (data) => encode(Contribution, fullContribution(data, before.get("Contribution"))),
  settings: (data) => {
    const { name, settings } = decode(Offer, data).kinds[0] ?? { name: "none" };
    return jsonOf([name, Object.keys(make(name, settings)).length > 0]);
  },
  npz: async (data) => jsonOf([(await readArrays("a.npz", data, SHAPE)).count]),
};

const usedBytes = () => {
  const { arrayBuffers, heapUsed } = process.memoryUsage();
  return arrayBuffers + heapUsed;
};

async function answered(name, data) {
  const decoder = DECODERS[name];
  if (name.startsWith("before ")) before.set(name.slice(7), decode(messages[name.slice(7)], data));
  const grown = usedBytes();
  const began = performance.now();
  let [verdict, reply] = [1, new Uint8Array()];
  try {
    reply = (await decoder?.(data)) ?? reply;
  } catch (error) {
    verdict = error instanceof DeviceError ? 0 : 2;
    reply = utf8(verdict ? `${error?.stack ?? error}` : oneLine(error));
  }
  const seconds = (performance.now() - began) / 1e3;
  const head = new Uint8Array(HEAD);
  head[0] = verdict;
  view(head).setFloat64(1, seconds, true);
  view(head).setFloat64(9, Math.max(0, usedBytes() - grown), true);
  view(head).setUint32(17, reply.length, true);
  return [head, reply];
}

let waiting = Buffer.alloc(0);
/** The next so many bytes of stdin, or null at its end. */
async function* inputs() {
  for await (const chunk of process.stdin) {
    waiting = Buffer.concat([waiting, chunk]);
    for (let request = nextRequest(); request; request = nextRequest()) yield request;
  }
}

function nextRequest() {
  const parts = [];
  let at = 0;
  for (let part = 0; part < 2; part += 1) {
    if (waiting.length < at + 4) return null;
    const size = waiting.readUInt32LE(at);
    if (waiting.length < at + 4 + size) return null;
    parts.push(new Uint8Array(waiting.subarray(at + 4, at + 4 + size)));
    at += 4 + size;
  }
  waiting = waiting.subarray(at);
  return parts;
}

for await (const [name, data] of inputs()) {
  for (const part of await answered(text(name), data)) process.stdout.write(part);
}
