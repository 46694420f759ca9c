import assert from "node:assert/strict";
import { test } from "node:test";

import { concat, utf8 } from "../device/bytes.js";
import { BundleError } from "../device/errors.js";
import { outside } from "../device/outside.js";
import { delimited, fields } from "../device/protobuf.js";
import { files } from "./shipped.js";

/** A model whose graph has one node with this field in an attribute. */
const withAttribute = (number) => {
  const attribute = concat([delimited(1, utf8("body")), delimited(number, delimited(1, delimited(4, utf8("Add"))))]);
  const node = concat([delimited(4, utf8("Loop")), delimited(5, attribute)]);
  return delimited(7, delimited(1, node));
};

test("the graphs that are shipped have no graph within them, and name what lies outside", () => {
  const { names } = outside(files("digits-wrn-10-1").get("forward.onnx"));
  assert.ok(names.length > 0);
});

test("a graph with a loop or a branch is refused: it need not end", () => {
  for (const number of [6, 11]) {
    assert.throws(() => outside(withAttribute(number)), (error) => error instanceof BundleError && /of a loop or a branch/.test(error.message));
  }
  assert.throws(() => outside(concat([delimited(7, utf8("")), delimited(25, utf8(""))])), /functions of its own/);
  assert.doesNotThrow(() => outside(withAttribute(5)));
});

test("a field's number has 29 bits, as Python says", () => {
  const largest = Uint8Array.of(0xf8, 0xff, 0xff, 0xff, 0x0f, 0x01); // 2**29 - 1, a varint of 1
  assert.deepEqual([...fields(largest)].map(({ number }) => number), [2 ** 29 - 1]);
  assert.throws(() => [...fields(Uint8Array.of(0x80, 0x80, 0x80, 0x80, 0x10, 0x01))], /no field has the number 536870912/);
});
