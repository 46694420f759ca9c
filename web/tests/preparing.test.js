import assert from "node:assert/strict";
import { test } from "node:test";

import { readArrays } from "../device/arrays.js";
import { fromHex, hex } from "../device/bytes.js";
import { DataError } from "../device/errors.js";
import { npz } from "../device/npz.js";
import { MotionRecording, axesOf, unitOf } from "../device/motion.js";
import { isLightOnDark, pictureRaw, prepare, whatOf, white } from "../device/preparing.js";
import { readWav, resampled, soundRaw } from "../device/sounds.js";
import { vectors } from "./vectors.js";

const cases = vectors("preparing");
const DIGITS = cases.prepare[0].input;
const SPEECH = cases.sounds[0].input;
const DEFLATED =
  "504b03042d00000008000000210062ac2b0fffffffffffffffff05001400782e6e707901001000800100000000000060000000000000009bec17ea" +
  "1b10c9c850c650ad9e925a9c5ca46ea5a06e9366a2aea3a09e965f54529498179f5f94920a12774bcc294e058a17672416a402f91a463a0ac6469a" +
  "3a0ab50ae4022e0682a0c11e3f6670c08f1d08e006027801017c80007e80170300504b01022d032d00000008000000210062ac2b0f600000008001" +
  "0000050000000000000000000000800100000000782e6e7079504b0506000000000100010033000000970000000000";

/** Numbers by x <- (75 x + 74) mod 65537, as in the writer of the vectors. */
function noise(seed, count) {
  let x = seed;
  return Array.from({ length: count }, () => (x = (75 * x + 74) % 65537));
}

/** Checks bytes that were rounded from floats: one in 500, or a single one, may be off by 1. */
function assertRoundedAlike(actual, expected, of) {
  assert.equal(actual.length, expected.length);
  const off = [...actual].map((value, i) => Math.abs(value - expected[i])).filter((step) => step !== 0);
  assert.ok(off.every((step) => step === 1) && off.length <= Math.max(1, actual.length / 500), `${of}: ${off.length} are off`);
}

const bytesOf = (floats) => hex(new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength));

test("raw values become the same float32 values as in Python", () => {
  for (const example of cases.prepare) {
    const count = example.input.shape.reduce((a, b) => a * b, 1);
    const x = prepare(example.input, noise(example.seed, count).map((value) => value % 256));
    assert.equal(bytesOf(x), example.x);
  }
});

test("values that are not whole samples are refused", () => {
  assert.throws(() => prepare(DIGITS, new Uint8Array(65)), DataError);
});

test("pictures are cut and resized as in Python", () => {
  for (const example of cases.pictures) {
    const count = example.height * example.width * example.channels;
    const raw = pictureRaw(example.input, { ...example, pixels: Uint8Array.from(noise(7, count), (value) => value % 256) });
    if (white(example.input) === 255) assertRoundedAlike(raw, fromHex(example.levels), `${example.height}x${example.width}`);
    else {
      assert.equal(raw.length, example.raw.length);
      raw.forEach((value, i) => assert.ok(Math.abs(value - example.raw[i]) <= 1e-5 * Math.max(1, example.raw[i]), `${i}: ${value}, expected ${example.raw[i]}`));
    }
  }
});

test("the sort of samples follows from the shape of the input", () => {
  const formOf = (shape, vocabulary = null) => whatOf({ ...DIGITS, shape, vocabulary });
  assert.deepEqual([formOf([1, 8, 8]), formOf([3, 32, 32]), formOf([1, 61, 40]), formOf([61, 40])], ["picture", "picture", "sound", "sound"]);
  assert.deepEqual([formOf([12]), formOf([5, 8, 8]), formOf([64], 1000)], ["numbers", "numbers", "text"]);
});

test("digits of 16 greys are light on a dark ground", () => {
  assert.equal(white(DIGITS), 16);
  assert.ok(isLightOnDark(DIGITS));
  assert.ok(!isLightOnDark({ ...DIGITS, mean: [0.8] }));
  assert.ok(!isLightOnDark({ ...DIGITS, scale: 1, mean: [200] }));
});

test("log-mel features of sounds at any rate are those of Python", () => {
  for (const { input, rate, count, levels } of cases.sounds) {
    const samples = noise(rate, count).map((value, i) => Math.floor(((value - 32768) * ((i * 7) % 997)) / 1024));
    assertRoundedAlike(soundRaw(input, Float32Array.from(samples), rate), fromHex(levels), `at ${rate} Hz`);
  }
});

test("a short sound is padded with silence, at the lowest level", () => {
  const raw = soundRaw(SPEECH, new Float32Array(10), 16_000);
  assert.equal(raw.length, 61 * 40);
  assert.ok(raw.every((value) => value === 0));
});

test("a tone keeps its loudness at another rate", () => {
  const tone = Float32Array.from({ length: 4800 }, (_, i) => 1000 * Math.sin((2 * Math.PI * 440 * i) / 48_000));
  const output = resampled(tone, 48_000, 16_000, 1600);
  for (let i = 100; i < 1500; i++) assert.ok(Math.abs(output[i] - 1000 * Math.sin((2 * Math.PI * 440 * i) / 16_000)) < 5);
});

test("WAVE files of every width are read as in Python", () => {
  for (const example of cases.wav) {
    const sound = readWav(fromHex(example.file));
    assert.equal(sound.rate, example.rate);
    assert.equal(bytesOf(sound.samples), example.samples);
  }
});

test("bytes that are no sound are refused, wherever they end", () => {
  const whole = fromHex(cases.wav[1].file);
  for (let size = 0; size < 55; size++) assert.throws(() => readWav(whole.slice(0, size)), DataError, `${size} bytes`);
});

test("samples in .npz files are read, stored and deflated", async () => {
  const batch = await readArrays("some.NPZ", fromHex(cases.npz.file), [1, 2, 2]);
  assert.deepEqual([...batch.raw], cases.npz.x);
  assert.deepEqual(batch.labels, cases.npz.labels);
  assert.equal(batch.count, 4);
  const { x } = Object.fromEntries(await npz(fromHex(DEFLATED), ["x"]));
  assert.deepEqual(x.shape, [2, 32]);
  assert.deepEqual([...x.data], Array.from({ length: 64 }, (_, i) => Math.floor(i / 8)));
});

test("arrays of another shape, and files without labels, are refused with what was expected", async () => {
  await assert.rejects(readArrays("a.npz", fromHex(cases.npz.file), [1, 3, 3]), /samples are \(4,2,2\), the task's input is \(1,3,3\)/);
  await assert.rejects(readArrays("a.npz", fromHex(DEFLATED), [32]), /no array 'y'/);
  await assert.rejects(readArrays("a.npz", new Uint8Array(40), [32]), DataError);
  await assert.rejects(readArrays("a.doc", new Uint8Array(40), [32]), /\.npz, \.npy or \.csv/);
});

test("the label of a table's row is in the column with such a name, or in the last", async () => {
  const read = (text) => readArrays("a.csv", new TextEncoder().encode(text), [2]);
  const named = await read("label,a,b\nx,1,2\ny,3,4\n");
  assert.deepEqual([[...named.raw], named.labels], [[1, 2, 3, 4], ["x", "y"]]);
  const bare = await read("1;2;x\r\n3;4;y");
  assert.deepEqual([[...bare.raw], bare.labels], [[1, 2, 3, 4], ["x", "y"]]);
  await assert.rejects(read("1,2,x\n3,y"), /row 2 has 2 cells, expected 3/);
  await assert.rejects(read("1,zwei,x"), DataError);
});

test("readings of motion become the same windows as rows of a recording in Python", () => {
  for (const example of cases.motion) {
    const recording = new MotionRecording(example.input);
    for (const [i, [x, y, z]] of example.readings.entries()) recording.add({ x, y, z }, i / 60);
    assert.equal(recording.count, 2);
    assert.equal(bytesOf(recording.windows()), example.raw);
    assert.equal(bytesOf(prepare(example.input, recording.windows())), example.x);
  }
});

test("readings are resampled to the rate that a task says, and each is a time step where it says none", () => {
  const input = (more) => ({ shape: [1, 4], scale: 1, mean: [0], std: [1], window: { step: 4, columns: ["x"], ...more } });
  const recorded = (spec, times) => {
    const recording = new MotionRecording(spec);
    for (const atS of times) recording.add({ x: 10 * atS, y: 0, z: 0 }, atS);
    return recording;
  };
  const uneven = [3, 3.1, 3.1, 3.25, 3.3, 3.55, 3.7]; // of 0.7 s: 8 steps at 10 a second, whatever came when
  const at10 = recorded(input({ rate: 10 }), uneven);
  assert.deepEqual([at10.count, at10.isSlow], [2, true]);
  assert.deepEqual([...at10.windows()].map((value) => Number(value.toFixed(4))), [30, 31, 32, 33, 34, 35, 36, 37]);
  assert.ok(Math.abs(at10.perSecond - 5 / 0.7) < 1e-9);
  const fast = recorded(input({ rate: 2 }), Array.from({ length: 97 }, (_, i) => i / 60)); // 1.6 s: 4 steps
  assert.deepEqual([fast.count, fast.isSlow, [...fast.windows()].map((value) => Number(value.toFixed(4)))], [1, false, [0, 5, 10, 15]]);
  const unknown = recorded(input({}), uneven);
  assert.deepEqual([unknown.count, unknown.isSlow], [1, false]);
  assert.deepEqual([...unknown.windows()], [...Float32Array.of(30, 31, 31, 32.5)]);
  const none = recorded(input({ rate: 10 }), []);
  assert.deepEqual([none.count, none.perSecond, none.windows().length], [0, 0, 0]);
});

const windows = (channels, columns = [], more = {}) => ({ shape: [channels, 40], scale: 1, mean: [0], std: [1], window: { step: 20, columns }, ...more });

test("channels are found by the names of an accelerometer's axes, and others are refused in words", () => {
  assert.deepEqual(axesOf(windows(3)), ["x", "y", "z"]);
  assert.deepEqual(axesOf(windows(3, ["Acc_Z", "accel.x", "acceleration y"])), ["z", "x", "y"]);
  assert.deepEqual(axesOf(windows(1, ["ay"])), ["y"]);
  assert.throws(() => axesOf(windows(3, ["x", "x", "y"])), DataError);
  assert.throws(() => axesOf(windows(3, ["gyro_x", "gyro_y", "gyro_z"])), /readings of gyro_x, gyro_y, gyro_z, which the motion sensor of a phone does not give/);
  assert.throws(() => axesOf(windows(6)), /readings of 6 channels, and the motion sensor of a phone has 3/);
});

test("readings are in g where the task's are, else in metres per square second", () => {
  assert.equal(unitOf(windows(3)), "m/s²");
  assert.equal(unitOf(windows(3, [], { mean: [0.1, 0.8, 0.1], std: [0.3, 0.4, 0.3] })), "g");
  assert.equal(unitOf(windows(3, [], { mean: [1, 8, 1], std: [3, 4, 3] })), "m/s²");
});

test("windows are samples of their own sort, also if they are 40 readings long", () => {
  assert.equal(whatOf({ ...windows(1, ["x"]), dtype: "float32" }), "windows");
});
