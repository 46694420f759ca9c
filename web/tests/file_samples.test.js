import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { DataError } from "../device/errors.js";
import { FileSamples } from "../node/file_samples.js";
import { packed as zip } from "./shipped.js";

const INPUT = { shape: [2], scale: 1, mean: [0], std: [1], dtype: "float32" };

/** The samples that a device in Node reads from a table. */
async function opened(t, table, labels) {
  const folder = mkdtempSync(join(tmpdir(), "samples-"));
  t.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "a.csv"), table);
  return FileSamples.open(join(folder, "a.csv"), { input: INPUT, labels });
}

test("a table has class names, in any case, or class numbers", async (t) => {
  const labels = ["setosa", "versicolor", "virginica"];
  const named = await opened(t, "1,2,Setosa\n3,4,virginica\n", labels);
  const numbered = await opened(t, "1,2,0\n3,4,2\n", labels);
  for (const samples of [named, numbered]) {
    assert.deepEqual([...samples.training().y], [0, 2]);
    assert.deepEqual([...samples.training().x], [1, 2, 3, 4]);
  }
  await assert.rejects(opened(t, "1,2,3\n", labels), DataError);
  await assert.rejects(opened(t, "1,2,rosa\n", labels), DataError);
});

test("an array with a value that is not finite is refused, as in the page", async (t) => {
  const head = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
  const npy = (header, values) => Buffer.concat([Buffer.from("\x93NUMPY\x01\x00", "latin1"), Buffer.from(Uint16Array.of(header.length).buffer), Buffer.from(header), Buffer.from(values.buffer)]);
  const y = npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }", Int32Array.of(0));
  const folder = mkdtempSync(join(tmpdir(), "samples-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const open = (x) => {
    writeFileSync(join(folder, "a.npz"), zip(new Map([["x.npy", npy(head, x)], ["y.npy", y]])));
    return FileSamples.open(join(folder, "a.npz"), { input: INPUT, labels: ["a", "b"] });
  };
  assert.equal((await open(Float32Array.of(1, 2))).count(), 1);
  for (const value of [NaN, Infinity]) await assert.rejects(open(Float32Array.of(1, value)), DataError);
});
