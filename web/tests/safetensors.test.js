import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex } from "../device/bytes.js";
import { TensorError } from "../device/errors.js";
import { read, write } from "../device/safetensors.js";
import { vectors } from "./vectors.js";

const cases = vectors("safetensors");
const bytesOf = (data) => hex(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));

for (const { of, bytes, tensors } of cases.sets) {
  test(`Python's tensors are read: ${of}`, () => {
    const actual = [...read(fromHex(bytes))].map(([name, { dtype, shape, data }]) => ({
      name,
      dtype,
      shape: [...shape],
      values: bytesOf(data),
    }));
    assert.deepEqual(actual, tensors);
  });

  test(`tensors are written in Python's bytes, whatever their order: ${of}`, () => {
    const entries = [...read(fromHex(bytes))];
    assert.equal(hex(write(new Map(entries))), bytes);
    assert.equal(hex(write(new Map(entries.reverse()))), bytes);
  });
}

for (const { of, bytes } of cases.refused) {
  test(`bytes that Python refuses are refused: ${of}`, () => {
    assert.throws(() => read(fromHex(bytes)), TensorError);
  });
}

test("metadata is ignored", () => {
  assert.deepEqual([...read(fromHex(cases.with_metadata)).keys()], ["a"]);
});

test("the arrays are the reader's own, wherever the bytes lie", () => {
  const bytes = fromHex(cases.sets.find((example) => example.of === "of every dtype").bytes);
  const shifted = new Uint8Array(bytes.length + 3);
  shifted.set(bytes, 3);
  const tensors = read(shifted.subarray(3));
  tensors.get("t.float32").data[0] = 7;
  assert.equal(hex(shifted.subarray(3)), hex(bytes));
  assert.deepEqual([...tensors.get("t.float64").data], [0, 1, 2, 3, 4, 5]);
});

test("of a view into a larger array, only the view is written", () => {
  const whole = Float32Array.of(1, 2, 3, 4);
  const tensor = { dtype: "float32", shape: [2], data: whole.subarray(1, 3) };
  assert.deepEqual([...read(write(new Map([["a", tensor]]))).get("a").data], [2, 3]);
});

test("a tensor of an unknown dtype or a wrong size is not written", () => {
  const data = Float32Array.of(1, 2);
  const of = (tensor) => () => write(new Map([["a", tensor]]));
  assert.throws(of({ dtype: "complex64", shape: [1], data }), /a is complex64/);
  assert.throws(of({ dtype: "int32", shape: [2], data }), TensorError);
  assert.throws(of({ dtype: "float32", shape: [3], data }), /2 values, expected 3/);
});
