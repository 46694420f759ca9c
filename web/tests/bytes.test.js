import assert from "node:assert/strict";
import { test } from "node:test";

import { concat, equal, fromBase64Url, fromHex, hex, littleEndian, sha256, text, toLittleEndian, utf8 } from "../device/bytes.js";
import { vectors } from "./vectors.js";

test("hashes and texts are as in Python", async () => {
  for (const example of vectors("bytes").sha256) {
    assert.equal(hex(utf8(example.text)), example.utf8);
    assert.equal(text(fromHex(example.utf8)), example.text);
    assert.equal(hex(await sha256(utf8(example.text))), example.sha256);
  }
});

test("bytes that are not UTF-8 are refused", () => {
  assert.throws(() => text(Uint8Array.of(0xff, 0xfe)), TypeError);
});

test("words that are not hex or not base64url are refused", () => {
  assert.throws(() => fromHex("abc"), RangeError);
  assert.throws(() => fromHex("zz"), RangeError);
  assert.throws(() => fromBase64Url("§"), RangeError);
});

test("base64url is read with and without its padding", () => {
  for (const word of ["-_8", "-_8="]) assert.deepEqual([...fromBase64Url(word)], [0xfb, 0xff]);
});

test("numbers are little-endian, to 64 bits", () => {
  assert.deepEqual([...toLittleEndian(0x0102n, 4)], [2, 1, 0, 0]);
  assert.equal(littleEndian(toLittleEndian(2n ** 64n - 2n, 8)), 2n ** 64n - 2n);
  assert.equal(littleEndian(Uint8Array.of(9, 1, 2, 9), 1, 2), 0x0201n);
});

test("parts are put together, and equal bytes are equal", () => {
  const whole = concat([Uint8Array.of(1), Uint8Array.of(), Uint8Array.of(2, 3)]);
  assert.ok(equal(whole, Uint8Array.of(1, 2, 3)));
  assert.ok(!equal(whole, Uint8Array.of(1, 2)));
  assert.ok(!equal(whole, Uint8Array.of(1, 2, 4)));
});
