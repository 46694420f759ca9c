import assert from "node:assert/strict";
import { test } from "node:test";
import { inflateSync } from "node:zlib";

import { fromHex, hex } from "../device/bytes.js";
import { codecNamed } from "../device/codecs.js";
import { read, write } from "../device/safetensors.js";
import { vectors } from "./vectors.js";

const cases = vectors("codecs");
const base = read(fromHex(cases.base));
const updates = cases.updates.map((text) => read(fromHex(text)));

async function written(word, rounds, unpacked) {
  let left = new Map();
  for (const [at, { plain, left: expected }] of rounds.entries()) {
    const encoded = await codecNamed(word).encode(updates[at], base, left);
    assert.equal(hex(unpacked(encoded.body)), plain);
    assert.equal(encoded.left && hex(write(encoded.left)), expected);
    left = encoded.left ?? new Map();
  }
}

for (const { word, lossy, rounds } of cases.codecs) {
  test(`an update has Python's bytes, and as much is left out, round after round: "${word}"`, async () => {
    assert.equal(codecNamed(word).lossy, lossy);
    await written(word, rounds, (body) => body);
  });

  test(`a packed update unpacks to the same bytes as in Python: "${word}"`, async () => {
    await written(word ? `${word}+deflate` : "deflate", rounds, inflateSync);
  });
}

test("a word that names no codec is refused with what was expected", () => {
  for (const { word, python } of cases.none) {
    assert.throws(() => codecNamed(word), { name: "CodecError", message: python });
  }
});

test("predicted bytes are Python's", () => {
  for (const { word, values, count, exact, bytes } of cases.predicted) {
    assert.equal(codecNamed(word).payloadBytes(values, count, exact), bytes, word);
  }
});

test("encoding does not change its arguments", async () => {
  await codecNamed("delta+int8+deflate").encode(updates[0], base, new Map());
  assert.equal(hex(write(updates[0])), cases.updates[0]);
  assert.equal(hex(write(base)), cases.base);
});
