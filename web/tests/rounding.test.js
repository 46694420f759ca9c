import assert from "node:assert/strict";
import { test } from "node:test";

import { fixed, general, percent, whole } from "../device/rounding.js";

test("whole numbers: a tie goes to the even one", () => {
  assert.deepEqual([0.5, 1.5, 2.5, -0.5, -1.5, 2.4999999999999996, 7.6].map(whole), [0, 2, 2, 0, -2, 2, 8]);
});

test("fixed digits: a tie goes to the even digit, but not a number that only looks like a tie", () => {
  assert.equal(fixed(0.25, 1), "0.2");
  assert.equal(fixed(0.75, 1), "0.8");
  assert.equal(fixed(12.5, 0), "12");
  assert.equal(fixed(13.5, 0), "14");
  assert.equal(fixed(0.35, 1), "0.3"); // the double is 0.34999999999999997…
  assert.equal(fixed(1.005, 2), "1.00");
  assert.equal(fixed(-0.25, 1), "-0.2");
  assert.equal(fixed(0.125, 2), "0.12");
  assert.equal(fixed(Infinity, 1), "inf");
  assert.equal(fixed(NaN, 1), "nan");
});

test("a share in percent", () => {
  const written = [0.5, 0.25, 0.1, 0.125, 0.055, 1].map(percent);
  assert.deepEqual(written, ["50%", "25%", "10%", "12%", "6%", "100%"]);
});

test("six significant digits, as :g writes them", () => {
  const written = [0, 0.1, 1e-5, 0.00012345678, 123456, 1234567, 2.5, 100000, 1e21].map(general);
  const expected = ["0", "0.1", "1e-05", "0.000123457", "123456", "1.23457e+06", "2.5", "100000", "1e+21"];
  assert.deepEqual(written, expected);
});
