import assert from "node:assert/strict";
import { test } from "node:test";

import { BundleError, DataError } from "../device/errors.js";
import { prepare } from "../device/preparing.js";
import { Texts, tokenizerOf } from "../device/tokenizer.js";
import { vectors } from "./vectors.js";

const { byte_pairs: bytePairs, word_pieces: wordPieces } = vectors("texts");
const cases = [...bytePairs, ...wordPieces];
const specOf = ({ text, length }) => ({ shape: [length], text, vocabulary: 400, dtype: "int64", scale: 1, mean: [0], std: [1] });

test("texts become the same ids as in Python, with the fixed ones and padding", () => {
  for (const example of cases) {
    const tokenizer = tokenizerOf(example.tokenizer);
    const texts = new Texts(specOf(example), tokenizer);
    assert.ok(example.texts.length > 10);
    for (const { text, ids, x } of example.texts) {
      assert.deepEqual([...tokenizer.ids(text)], ids, JSON.stringify(text));
      assert.deepEqual([...texts.ids(text)], x, JSON.stringify(text));
    }
  }
});

test("half of a surrogate pair is a question mark for pairs of bytes, as in Python", () => {
  const tokenizer = tokenizerOf(bytePairs[0].tokenizer);
  assert.deepEqual([...tokenizer.ids("a\udc80b")], [...tokenizer.ids("a?b")]);
});

test("ids can be read again, without what stands around them", () => {
  const [plain] = bytePairs;
  const texts = new Texts(specOf(plain), tokenizerOf(plain.tokenizer));
  assert.equal(texts.text(texts.ids(" na\u00efve films ")), "na\u00efve films");
  const pieces = new Texts(specOf(wordPieces[0]), tokenizerOf(wordPieces[0].tokenizer));
  assert.equal(pieces.text(pieces.ids("The Unaffable films")), "the unaffable films");
});

test("a text of spaces is refused, and a tokenizer of another sort", () => {
  const [plain] = bytePairs;
  assert.throws(() => new Texts(specOf(plain), tokenizerOf(plain.tokenizer)).ids(" \u3000\n"), DataError);
  assert.throws(() => tokenizerOf('{"model": {"type": "Unigram"}}'), BundleError);
  assert.throws(() => tokenizerOf('{"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [{"id": 1, "content": "a", "special": false}]}'), /added as a word/);
});

test("prepared ids are ids, and those outside the vocabulary are refused", () => {
  const spec = specOf(bytePairs[0]);
  const ids = Int32Array.from({ length: 24 }, (_, i) => i);
  assert.deepEqual(prepare(spec, ids), ids);
  assert.throws(() => prepare({ ...spec, vocabulary: 23 }, ids), /token id 23, expected 0 to 22/);
});
