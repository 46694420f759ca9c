import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

import { DataError } from "../device/errors.js";
import { FileSamples } from "../node/file_samples.js";

const INPUT = { shape: [2], scale: 1, mean: [0], std: [1], dtype: "float32" };

/** What a device in Node reads of a table. */
async function opened(t, table, labels) {
  const folder = mkdtempSync(join(tmpdir(), "samples-"));
  t.after(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "a.csv"), table);
  return FileSamples.open(join(folder, "a.csv"), { input: INPUT, labels });
}

test("a table names its classes, in any case, or gives their numbers", async (t) => {
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
