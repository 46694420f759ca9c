import assert from "node:assert/strict";
import { test } from "node:test";

import { fromHex, hex, view } from "../device/bytes.js";
import { MessageError } from "../device/errors.js";
import { listOf } from "../device/fields.js";
import { fromHalf, toHalf } from "../device/half.js";
import { Stretch, packed as written } from "../device/messages.js";
import * as stepLog from "../device/step_log.js";
import { vectors } from "./vectors.js";

const cases = vectors("steps");

function doubles(digits) {
  const data = fromHex(digits);
  return Array.from({ length: data.length / 8 }, (_, at) => view(data).getFloat64(8 * at, true));
}

const stepOf = (plain) => ({
  ...plain,
  seed: BigInt(plain.seed),
  scalars: doubles(plain.scalars),
});

test("the seeds of rounds are Python's", async () => {
  for (const { seed, round, made } of cases.seeds) {
    assert.equal(await stepLog.roundSeed(BigInt(seed), round), BigInt(made));
  }
});

for (const { of, blob, steps: steps } of cases.logs) {
  test(`a log is read exactly: ${of}`, async () => {
    assert.deepEqual(await stepLog.decode(fromHex(blob)), steps.map(stepOf));
    assert.equal(stepLog.count(stepLog.decodeStretches(fromHex(blob))), steps.length);
  });
}

for (const { step, seed, stretches } of cases.single) {
  test(`one step is written as Python does: ${step.scalars}, seed ${seed}`, async () => {
    const stretch = await stepLog.packStep(stepOf(step), seed === null ? null : BigInt(seed));
    assert.equal(hex(written(listOf(Stretch), [stretch], "log")), stretches);
  });
}

for (const { of, blob, python } of cases.damaged) {
  test(`stretches whose parts do not fit each other are refused: ${of}`, async () => {
    await assert.rejects(stepLog.decode(fromHex(blob)), { name: "MessageError", message: python });
  });
}

test("more scalars than a log has are refused before they are read", async () => {
  const [stretch] = stepLog.decodeStretches(fromHex(cases.logs[0].blob));
  const large = { ...stretch, form: "i1", width: 2 ** 19, scalars: new Uint8Array(2 ** 20) };
  const small = { ...stretch, form: "f2", width: 2, scalars: new Uint8Array(8) };
  await assert.rejects(stepLog.unpack([large, small]), { message: cases.too_many_scalars });
});

test("random bytes are refused with MessageError only", async () => {
  for (const data of [[], [0xc1], [0x91, 0x01], [0x81, 0xa1, 0x61, 0x01]]) {
    await assert.rejects(stepLog.decode(Uint8Array.from(data)), MessageError);
  }
});

cases.joined.forEach(({ before, new: added, most, made }, at) => {
  test(`stretches are joined, and only the last kept, as in Python: ${at}`, () => {
    const read = (digits) => stepLog.decodeStretches(fromHex(digits));
    const joined = stepLog.lastOfBoth(read(before), read(added), most);
    assert.equal(hex(written(listOf(Stretch), joined, "log")), made);
  });
});

test("the beginning of a log follows from its segments", () => {
  assert.equal(stepLog.SEGMENT, cases.segment);
  for (const { at, log, begins } of cases.begins) {
    assert.equal(stepLog.logStart({ at, log: Array(log).fill(null) }), begins);
  }
});

test("16-bit numbers are numpy's", () => {
  for (const { number, bits } of cases.halves) {
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
