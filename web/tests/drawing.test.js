import assert from "node:assert/strict";
import { test } from "node:test";

import { drawn } from "../device/drawing.js";

const CORNER = [[{ x: 0, y: 0 }, { x: 0, y: 100 }, { x: 60, y: 100 }], [{ x: 30, y: 50 }]];

test("the place and the size of a drawing do not matter", () => {
  const far = CORNER.map((stroke) => stroke.map(({ x, y }) => ({ x: 8 * x - 3000, y: 8 * y + 17 })));
  assert.deepEqual(drawn(far, true, 8), drawn(CORNER, true, 8));
});

test("ink is where the pen was, and the drawing fills the height", () => {
  const { pixels, height, width, channels } = drawn(CORNER, true, 8);
  assert.deepEqual([height, width, channels], [64, 64, 1]);
  const at = (x, y) => pixels[y * width + x];
  assert.equal(at(16, 32), 255, "the upright line");
  assert.equal(at(32, 60), 255, "the line at the bottom");
  assert.equal(at(32, 32), 255, "the dot");
  assert.equal(at(48, 16), 0);
  assert.ok(pixels.slice(0, width).some(Boolean) && pixels.slice(-width).some(Boolean));
});

test("ink is dark if the task's pictures are dark on light", () => {
  const light = drawn(CORNER, true, 8).pixels;
  assert.deepEqual(drawn(CORNER, false, 8).pixels, light.map((value) => 255 - value));
});

test("a picture of 28 pixels has a margin of 4, as in MNIST", () => {
  const { pixels } = drawn(CORNER, true, 28);
  const rows = Array.from({ length: 64 }, (_, row) => pixels.slice(64 * row, 64 * row + 64).some(Boolean));
  assert.ok(rows.indexOf(true) >= 8 && rows.lastIndexOf(true) <= 55);
});

test("a single dot is drawn in the middle", () => {
  const { pixels } = drawn([[{ x: 5, y: 5 }]], true, 8);
  assert.equal(pixels[32 * 64 + 32], 255);
  assert.equal(pixels[32 * 64 + 40], 0);
});
