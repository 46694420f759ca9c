import assert from "node:assert/strict";
import { test } from "node:test";

import { PieceJoiner, isPiece } from "../device/pieces.js";

const SHA = "0a".repeat(32);
const DOWN = `fl/v1/d/pi/dn/block/${SHA}`;
const bytes = (...numbers) => new Uint8Array(numbers);

test("pieces of a block join in any order, and a doubled one counts once", () => {
  const joiner = new PieceJoiner();
  assert.equal(joiner.take(`${DOWN}/7.2.3`, bytes(5)), null);
  assert.equal(joiner.take(`${DOWN}/7.0.3`, bytes(1, 2)), null);
  assert.equal(joiner.take(`${DOWN}/7.0.3`, bytes(1, 2)), null);
  assert.deepEqual(joiner.take(`${DOWN}/7.1.3`, bytes(3, 4)), { topic: `${DOWN}/7`, payload: bytes(1, 2, 3, 4, 5) });
});

test("pieces of a message join to it, on its own topic", () => {
  const joiner = new PieceJoiner();
  assert.equal(joiner.take(`${DOWN}/task.0.2`, bytes(1)), null);
  assert.deepEqual(joiner.take(`${DOWN}/task.1.2`, bytes(2)), { topic: "fl/v1/d/pi/dn/task", payload: bytes(1, 2) });
});

test("whole blocks are no pieces, and pieces that cannot be are dropped", () => {
  assert.ok(!isPiece(`${DOWN}/7`));
  assert.ok(!isPiece("fl/v1/d/pi/dn/task"));
  assert.ok(isPiece(`${DOWN}/7.0.2`));
  const joiner = new PieceJoiner();
  for (const label of ["7.2.2", "7.0.0", "7.0.999", "state.0.1", "nothing.0.1"]) {
    assert.equal(joiner.take(`${DOWN}/${label}`, bytes(1)), null);
  }
});

test("what never becomes whole is bounded", () => {
  const joiner = new PieceJoiner();
  for (let number = 0; number < 40; number += 1) joiner.take(`${DOWN}/${number}.0.2`, bytes(number));
  assert.equal(joiner.take(`${DOWN}/0.1.2`, bytes(1)), null); // the oldest was dropped
  assert.ok(joiner.take(`${DOWN}/39.1.2`, bytes(1)));
});
