import assert from "node:assert/strict";
import { test } from "node:test";

import { KeywordCapture } from "../device/keyword_capture.js";

const RATE = 16_000;
const BLOCK = 128;

/** A sawtooth of 100 Hz from -height to height, so many seconds long. */
const tone = (seconds, height) => Float32Array.from({ length: seconds * RATE }, (_, i) => height * (((i % 160) - 79.5) / 79.5));
const joined = (...parts) => Float32Array.from(parts.flatMap((part) => [...part]));
const silence = (seconds) => new Float32Array(seconds * RATE);

/** One second captured from a sound, and how many seconds that took. */
function captured(sound, seconds = 1) {
  const capture = new KeywordCapture(seconds, RATE);
  let at = 0;
  for (; at < sound.length && !capture.done; at += BLOCK) capture.hear(sound.subarray(at, at + BLOCK));
  return { ...capture.cut(), done: capture.done, tookS: at / RATE, begun: capture.begun };
}

/** The seconds at which a clip has its first and its last loud sample. */
function extent(samples) {
  const loud = [...samples.keys()].filter((i) => Math.abs(samples[i]) > 1000);
  return [loud[0] / RATE, (loud.at(-1) + 1) / RATE];
}

for (const begin of [0.5, 0.9, 2.5]) {
  test(`a word that begins after ${begin} s is in the middle of the second that is kept`, () => {
    const noise = tone(0.01, 0.0005);
    const around = (seconds) => joined(...Array.from({ length: seconds * 100 }, () => noise));
    const { samples, fault, done, tookS } = captured(joined(around(begin), tone(0.4, 0.3), around(6)));
    assert.equal(samples.length, RATE);
    assert.equal(fault, "");
    assert.ok(done);
    const [first, last] = extent(samples);
    assert.ok(Math.abs(last - first - 0.4) < 0.01, `${first} to ${last}`);
    assert.ok(Math.abs((first + last) / 2 - 0.5) < 0.02, `${first} to ${last}`);
    assert.ok(tookS < Math.max(1.2, begin + 1.2), `${tookS}`);
  });
}

test("a word that comes at once is kept whole", () => {
  const [first, last] = extent(captured(joined(silence(0.2), tone(0.4, 0.3), silence(6))).samples);
  assert.ok(Math.abs(first - 0.05) < 0.01 && Math.abs(last - 0.45) < 0.01, `${first} to ${last}`); // 0.15 s are skipped
});

test("samples are those of the microphone, in units of 16-bit PCM", () => {
  const word = tone(0.5, 0.25);
  const { samples } = captured(joined(silence(1), word, silence(3)));
  const begin = samples.findIndex((value) => value !== 0);
  assert.deepEqual([...samples.slice(begin, begin + word.length)], [...word.map((value) => 32768 * value)]);
});

test("if nobody speaks, capture ends and tells whether there was noise or nothing at all", () => {
  const noise = captured(tone(9, 0.001));
  assert.deepEqual([noise.fault, noise.done, noise.begun, noise.samples.length], ["quiet", true, false, RATE]);
  assert.equal(captured(silence(9)).fault, "nothing");
});

test("constant noise is no word, and a word above it is found", () => {
  const noise = tone(3, 0.02);
  assert.equal(captured(tone(9, 0.02)).fault, "quiet");
  const { fault, samples } = captured(joined(noise, tone(0.4, 0.4), noise));
  assert.equal(fault, "");
  const loud = [...samples.keys()].filter((i) => Math.abs(samples[i]) > 0.03 * 32768);
  assert.ok(Math.abs((loud[0] + loud.at(-1)) / 2 / RATE - 0.5) < 0.05);
});

test("neither a click nor an offset is a word", () => {
  const click = joined(silence(0.5), tone(0.03, 0.9), silence(1), tone(0.4, 0.2), silence(3));
  const [first, last] = extent(captured(click).samples);
  assert.ok(last - first > 0.39 && last - first < 0.41);
  assert.equal(captured(tone(9, 0.0005).map((value) => value + 0.1)).fault, "quiet");
});

test("clipped sound is reported as too loud", () => {
  const cut = tone(0.4, 3).map((value) => Math.max(-1, Math.min(1, value)));
  assert.equal(captured(joined(silence(1), cut, silence(2))).fault, "loud");
});

test("a word that begins at once and lasts longer than the kept second is captured", () => {
  const { fault, done, samples } = captured(joined(tone(8, 0.2)));
  assert.deepEqual([fault, done, samples.length], ["quiet", true, RATE]); // there is no silence that it stands out from
  assert.ok(samples.every((value) => Number.isFinite(value)));
});
