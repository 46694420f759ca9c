import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex } from "../device/bytes.js";
import { BundleError } from "../device/errors.js";
import { checkGraph } from "../device/graph_check.js";
import { outside } from "../device/outside.js";
import { fields } from "../device/protobuf.js";
import { files } from "./shipped.js";
import { vectors } from "./vectors.js";

const GRAPHS = vectors("graphs");

test("every shipped graph is allowed, and names the initialisers that lie outside", () => {
  const shipped = [...files("digits-wrn-10-1")].filter(([name]) => name.endsWith(".onnx"));
  assert.ok(shipped.length > 5);
  for (const [, graph] of shipped) assert.doesNotThrow(() => outside(graph));
  assert.ok(outside(files("digits-wrn-10-1").get("forward.onnx")).names.length > 0);
});

for (const { name, graph, outside: names } of GRAPHS.allowed) {
  test(`a graph is allowed as in Python: ${name}`, () => {
    assert.deepEqual(checkGraph(fromHex(graph)), names);
  });
}

for (const { name, graph, python } of GRAPHS.refused) {
  test(`a graph is refused in Python's words: ${name}`, () => {
    assert.throws(() => outside(fromHex(graph)), (error) => {
      assert.ok(error instanceof BundleError, String(error));
      if (!python.includes("protocol buffer")) assert.equal(error.message, python);
      return true;
    });
  });
}

test("a field's number has 29 bits, as Python says", () => {
  const largest = Uint8Array.of(0xf8, 0xff, 0xff, 0xff, 0x0f, 0x01); // 2**29 - 1, a varint of 1
  assert.deepEqual([...fields(largest)].map(({ number }) => number), [2 ** 29 - 1]);
  assert.throws(() => [...fields(Uint8Array.of(0x80, 0x80, 0x80, 0x80, 0x10, 0x01))], /no field has the number 536870912/);
});
