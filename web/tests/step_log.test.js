import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex, view } from "../device/bytes.js";
import { MessageError } from "../device/errors.js";
import { listOf } from "../device/fields.js";
import { fromHalf, toHalf } from "../device/half.js";
import { Stretch, packed as written } from "../device/messages.js";
import * as stepLog from "../device/step_log.js";
import { vectors } from "./vectors.js";

const given = vectors("steps");

function doubles(digits) {
  const data = fromHex(digits);
  return Array.from({ length: data.length / 8 }, (_, at) => view(data).getFloat64(8 * at, true));
}

const stepOf = (told) => ({
  ...told,
  seed: BigInt(told.seed),
  scalars: doubles(told.scalars),
});

test("the seeds of rounds are Python's", async () => {
  for (const { seed, round, made } of given.seeds) {
    assert.equal(await stepLog.roundSeed(BigInt(seed), round), BigInt(made));
  }
});

for (const { of, blob, steps: told } of given.logs) {
  test(`a log is read exactly: ${of}`, async () => {
    assert.deepEqual(await stepLog.decode(fromHex(blob)), told.map(stepOf));
    assert.equal(stepLog.count(stepLog.decodeStretches(fromHex(blob))), told.length);
  });
}

for (const { step, seed, stretches } of given.single) {
  test(`one step is written as Python does: ${step.scalars}, seed ${seed}`, async () => {
    const made = await stepLog.packStep(stepOf(step), seed === null ? null : BigInt(seed));
    assert.equal(hex(written(listOf(Stretch), [made], "log")), stretches);
  });
}

for (const { of, blob, python } of given.damaged) {
  test(`stretches whose parts do not fit each other are refused: ${of}`, async () => {
    await assert.rejects(stepLog.decode(fromHex(blob)), { name: "MessageError", message: python });
  });
}

test("more scalars than a log has are refused before they are read", async () => {
  const [one] = stepLog.decodeStretches(fromHex(given.logs[0].blob));
  const large = { ...one, form: "i1", width: 2 ** 19, scalars: new Uint8Array(2 ** 20) };
  const small = { ...one, form: "f2", width: 2, scalars: new Uint8Array(8) };
  await assert.rejects(stepLog.unpack([large, small]), { message: given.too_many_scalars });
});

test("random bytes are refused with MessageError only", async () => {
  for (const data of [[], [0xc1], [0x91, 0x01], [0x81, 0xa1, 0x61, 0x01]]) {
    await assert.rejects(stepLog.decode(Uint8Array.from(data)), MessageError);
  }
});

given.joined.forEach(({ before, new: added, most, made }, at) => {
  test(`stretches are joined, and only the last kept, as in Python: ${at}`, () => {
    const read = (digits) => stepLog.decodeStretches(fromHex(digits));
    const joined = stepLog.lastOfBoth(read(before), read(added), most);
    assert.equal(hex(written(listOf(Stretch), joined, "log")), made);
  });
});

test("the beginning of a log follows from its segments", () => {
  assert.equal(stepLog.SEGMENT, given.segment);
  for (const { at, log, begins } of given.begins) {
    assert.equal(stepLog.logStart({ at, log: Array(log).fill(null) }), begins);
  }
});

test("16-bit numbers are numpy's", () => {
  for (const { number, bits } of given.halves) {
    assert.equal(toHalf(doubles(number)[0]), bits, `${doubles(number)}`);
  }
  for (let bits = 0; bits < 0x10000; bits += 1) {
    const isNan = (bits & 0x7c00) === 0x7c00 && bits & 0x3ff;
    if (!isNan) assert.equal(toHalf(fromHalf(bits)), bits);
    else assert.ok(Number.isNaN(fromHalf(bits)));
  }
});

test("round numbers that a number cannot hold exactly are refused", async () => {
  const stretch = { round: 2 ** 53, generator: "g", tunable: "all", lr: 0.1, width: 1, form: "i1", scalars: Uint8Array.of(1), seeds: 7n };
  await assert.rejects(stepLog.unpack([{ ...stretch, shares: new Uint8Array() }]), /whole numbers beyond 2\*\*53 are not counted/);
  assert.equal((await stepLog.unpack([{ ...stretch, shares: new Uint8Array(), round: 2 ** 52 }])).length, 1);
});
