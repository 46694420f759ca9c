import assert from "node:assert/strict";
import { test } from "node:test";

import { Blobs } from "../device/blobs.js";
import { MemoryDisk } from "../device/disk.js";
import { Downloads, MOST_BYTES } from "../device/downloads.js";
import { BlobError } from "../device/errors.js";

const blob = (number, size) => ({ sha: new Uint8Array(32).fill(number), size });

test("nothing is fetched of an offer that is too large, and the next offer is fetched", async () => {
  const gets = [];
  const blobs = await Blobs.open(new MemoryDisk());
  const downloads = new Downloads(blobs, { ask: (get) => gets.push(get), arrived: () => {} });
  const huge = [1, 2, 3].map((number) => blob(number, MOST_BYTES / 2 - 1));
  await assert.rejects(downloads.advance(huge, 0), (error) => {
    assert.ok(error instanceof BlobError);
    assert.match(error.message, /^3221225469 bytes are to be fetched at one time: at most 2147483648 are$/);
    return true;
  });
  assert.deepEqual(gets, []);
  assert.ok(await downloads.advance([blob(4, 1000)], 1));
  assert.deepEqual(gets.map((get) => get.blob.size), [1000]);
});
