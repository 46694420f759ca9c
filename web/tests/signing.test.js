import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex } from "../device/bytes.js";
import { NotTrusted } from "../device/errors.js";
import { Signed, decode, encode } from "../device/messages.js";
import { Verifier, sealer } from "../device/signing.js";
import { vectors } from "./vectors.js";

const { key, enrolled, says } = vectors("offer_stream");
/** Offers that Python sealed with the right key, another, or none; and payloads that are no offers. */
const messages = enrolled.flatMap(({ heard: all }) => all.map((message) => ({ ...message, payload: fromHex(message.payload) })));

/** The result of each: accepted, or the error. */
async function verified(offers) {
  const verifier = await Verifier.open(fromHex(key));
  return Promise.all(offers.map(({ topic, payload }) => verifier.open(topic, payload).catch((error) => `${error.name}: ${error.message}`)));
}

/** Makes `crypto` as in a browser without this algorithm. */
async function without(algorithm, work) {
  const { subtle } = crypto;
  const real = subtle.importKey;
  subtle.importKey = (form, bytes, how, ...more) =>
    how === algorithm ? Promise.reject(new DOMException("Unrecognized name.", "NotSupportedError")) : real.call(subtle, form, bytes, how, ...more);
  try {
    return await work();
  } finally {
    delete subtle.importKey;
  }
}

test("a browser without Ed25519 accepts the same offers as one with it", async () => {
  const message = messages.find(({ topic, offer }) => offer && topic.endsWith("/task"));
  const signed = decode(Signed, message.payload);
  const cut = encode(Signed, { ...signed, signature: signed.signature.slice(1) });
  const bent = encode(Signed, { ...signed, signature: signed.signature.map((byte, at) => (at === 40 ? byte ^ 1 : byte)) });
  const offers = [...messages, { ...message, payload: cut }, { ...message, payload: bent }, { ...message, topic: `${message.topic}s` }];
  const expected = await verified(offers);
  const verdicts = await without("Ed25519", () => verified(offers));
  assert.deepEqual(verdicts, expected);
  assert.equal(expected[messages.indexOf(message)].issued, signed.issued);
  for (const refused of expected.slice(-3)) assert.match(refused, /^NotTrusted: .*not signed by the aggregator/);
});

test("a device makes the same signatures as in Python, also in a browser without Ed25519", async () => {
  const signs = async () => (await sealer(fromHex(says.secret)))(says.topic, fromHex(says.message));
  assert.equal(hex(await signs()), says.sealed);
  assert.equal(hex(await without("Ed25519", signs)), says.sealed);
});

test("a key of another length is refused", async () => {
  await assert.rejects(Verifier.open(new Uint8Array(31)), NotTrusted);
});
