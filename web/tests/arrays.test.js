/** Files of arrays that are damaged, or that claim to have more content than they have. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";

import { readArrays } from "../device/arrays.js";
import { concat, toLittleEndian, utf8 } from "../device/bytes.js";
import { DataError } from "../device/errors.js";
import { readNpy } from "../device/npy.js";
import { npz } from "../device/npz.js";
import { packed } from "./shipped.js";

/** A .npy file with this type, this shape (as text) and this content. */
function npy(descr, shape, content = new Uint8Array()) {
  const head = utf8(`{'descr': '${descr}', 'fortran_order': False, 'shape': ${shape}, }\n`);
  return concat([Uint8Array.of(0x93, ...utf8("NUMPY"), 1, 0), toLittleEndian(BigInt(head.length), 2), head, content]);
}

const bytes = (typed) => new Uint8Array(typed.buffer);
const X = npy("<f4", "(2, 3)", bytes(Float32Array.of(1, 2, 3, 4, 5, 6)));
const Y = npy("<i8", "(2,)", bytes(BigInt64Array.of(1n, 0n)));

/** A .npz file of these arrays; `deflated`: the deflated x, for which the file states the size `claimed`. */
function archive(x, { deflated = false, claimed = x.length } = {}) {
  const content = deflated ? new Uint8Array(deflateRawSync(x)) : x;
  const zip = packed(new Map([["x.npy", content], ["y.npy", Y]]));
  const at = zip.findIndex((_, i) => new DataView(zip.buffer, i).getUint32(0, true) === 0x02014b50);
  zip.set(toLittleEndian(deflated ? 8n : 0n, 2), at + 10);
  zip.set(toLittleEndian(BigInt(claimed), 4), at + 24);
  return zip;
}

/** @param {RegExp} text */
const saying = (text) => (/** @type {any} */ error) => {
  assert.ok(error instanceof DataError, String(error?.stack));
  assert.match(error.message, text);
  return true;
};

test("arrays of every width are read, in either order of bytes", () => {
  const written = [
    ["<f4", bytes(Float32Array.of(1.5, -2))],
    [">f4", Uint8Array.of(0x3f, 0xc0, 0, 0, 0xc0, 0, 0, 0)],
    ["<f8", bytes(Float64Array.of(1.5, -2))],
  ];
  for (const [descr, content] of written) {
    assert.deepEqual([...readNpy(npy(descr, "(2,)", content)).data], [1.5, -2]);
  }
  assert.deepEqual([...readNpy(npy("|b1", "(3,)", Uint8Array.of(1, 0, 1))).data], [1, 0, 1]);
  assert.deepEqual([...readNpy(npy(">i2", "(2,)", Uint8Array.of(255, 254, 1, 0))).data], [-2, 256]);
  assert.deepEqual([...readNpy(npy("<u8", "()", bytes(BigUint64Array.of(7n)))).data], [7]);
  const two = bytes(Uint32Array.from([..."no", "\0", ..."yes"], (letter) => letter.codePointAt(0)));
  assert.deepEqual(readNpy(npy("<U3", "(2,)", two)).data, ["no", "yes"]);
});

test("an array that claims more values than the file has is refused", () => {
  const eight = new Uint8Array(8);
  const wrong = [
    [["<f4", "(3,)", eight], /\(3,\) of f4 takes 12 bytes, 8 are there/],
    [["|u1", "(1000000000, 1000000000)", eight], /takes 1000000000000000000 bytes, 8 are there/],
    [["<U9", "(400000000,)", eight], /takes 14400000000 bytes, 8 are there/],
    [["<U0", "(1000000000,)", eight], /of U0, which is not read/],
    [["<f4", `(0, ${"9".repeat(400)})`, eight], /takes NaN bytes, 8 are there/],
    [["<U2", "(1,)", Uint8Array.of(0, 0, 0, 255, 0, 0, 0, 0)], /names that are no text/],
    [["<f4", "(-1,)", eight], /shape is \(-1,\), expected lengths/],
    [["<f4", "(1e3,)", eight], /shape is \(1e3,\), expected lengths/],
    [["|O8", "(1,)", eight], /of O8, which is not read/],
    [["<c8", "(1,)", eight], /of c8, which is not read/],
  ];
  for (const [parts, text] of wrong) assert.throws(() => readNpy(npy(...parts)), saying(text), parts.join(" "));
  assert.equal(readNpy(npy("<f4", "(0, 99999999999999999999)")).data.length, 0);
});

test("a .npy file that ends anywhere too early is refused", () => {
  for (let size = 0; size < X.length; size += 1) {
    assert.throws(() => readNpy(X.slice(0, size)), DataError, `${size} bytes`);
  }
  assert.throws(() => readNpy(utf8("some text, and no array")), saying(/not a \.npy file/));
});

test("unpacked content must have the size that the file states, and no more is unpacked", async () => {
  const read = (zip) => readArrays("a.npz", zip, [3]);
  const sound = await read(archive(X, { deflated: true }));
  assert.deepEqual([[...sound.raw], sound.labels], [[1, 2, 3, 4, 5, 6], [1, 0]]);
  const bomb = npy("|u1", "(100000000,)", new Uint8Array(100_000_000));
  const [more, less] = [{ deflated: true, claimed: 1000 }, { deflated: true, claimed: X.length + 1 }];
  await assert.rejects(read(archive(bomb, more)), saying(/x\.npy .* to more than the 1000 bytes that it says/));
  await assert.rejects(read(archive(X, less)), saying(/x\.npy is 94 bytes, it says 95/));
  const huge = { deflated: true, claimed: 2 ** 31 };
  await assert.rejects(read(archive(X, huge)), saying(/x\.npy .*2147483648 bytes, at most \d+ are read/));
  await assert.rejects(read(archive(X, { claimed: X.length + 4 })), saying(/x\.npy is 94 bytes, it says 98/));
});

test("damaged deflated content is refused by its name", async () => {
  const zip = archive(X, { deflated: true });
  const at = 30 + "x.npy".length;
  zip.fill(0xff, at, at + 20);
  await assert.rejects(npz(zip, ["x"]), saying(/x\.npy cannot be unpacked/));
  const way = archive(X);
  way[way.findIndex((_, i) => new DataView(way.buffer, i).getUint32(0, true) === 0x02014b50) + 10] = 12;
  await assert.rejects(npz(way, ["x"]), saying(/x\.npy is packed in a way \(12\) that is not read/));
});

test("an archive that ends anywhere too early, or points beyond itself, is refused", async () => {
  const zip = archive(X);
  for (let size = 0; size < zip.length; size += 1) await assert.rejects(npz(zip.slice(0, size), ["x"]), DataError);
  const beyond = archive(X);
  beyond.set([255, 255, 255, 127], beyond.length - 6);
  await assert.rejects(npz(beyond, ["x"]), saying(/not a \.npz file/));
});

test("an array that occurs twice is refused", async () => {
  const twice = packed(new Map([["x", X], ["x.npy", X]]));
  await assert.rejects(npz(twice, ["x"]), saying(/x is there twice/));
});

test("class names are applied to whole numbers only", async () => {
  const yes = npy("<U3", "(1,)", bytes(Uint32Array.from("yes", (letter) => letter.codePointAt(0))));
  const read = (y, names) => readArrays("a.npz", packed(new Map([["x.npy", X], ["y.npy", y], ["class_names.npy", names]])), [3]);
  const zeros = npy("|u1", "(2,)", new Uint8Array(2));
  assert.deepEqual((await read(zeros, yes)).labels, ["yes", "yes"]);
  await assert.rejects(read(Y, yes), saying(/a class number without a name/));
  await assert.rejects(read(zeros, zeros), saying(/class_names is no list of names/));
});

test("a cell that is empty or no number is refused with its row", async () => {
  const read = (text) => readArrays("a.csv", new TextEncoder().encode(text), [2]);
  const wrong = [
    ["1,2,x\n1,,x", /row 2 has "", expected a number/],
    ["a,b,label\n\n1,2,x\n1,zwei,x", /row 4 has "zwei", expected a number/],
    ["1,1e300,x", /row 1 has "1e300", expected a number/],
    ["a,b,label\n1,2,x\n3,y", /row 3 has 2 cells, expected 3/],
    ["a,b,label\n", /no samples, expected rows of 3 cells/],
    ["", /no samples/],
  ];
  for (const [text, words] of wrong) await assert.rejects(read(text), saying(words), text);
});
