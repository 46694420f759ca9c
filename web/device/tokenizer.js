/**
 * Tokenizers that come with a bundle and turn text into token ids: word pieces and byte pairs (models/text/file.py).
 * Characters are code points, as in Python.
 */

import { BundleError, DataError } from "./errors.js";

/**
 * Turns text into ids, and ids into text for people.
 * @typedef {{ids: (text: string) => Iterable<number>, text: (ids: Iterable<number>) => string}} Tokenizer
 */

/** Characters of a text that are read, and those of a word that are merged at once. */
const [LONGEST_TEXT, LONGEST] = [1 << 16, 1 << 10];
/** What Python's `strip` takes away. */
const ENDS = /^[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+|[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+$/g;

/** Makes the inputs of texts, for a task's input with `text` (models/bundles/inputs.py, Texts). */
export class Texts {
  /** @param {any} spec the task's input @param {Tokenizer} tokenizer */
  constructor({ text, shape: [length] }, tokenizer) {
    this._spec = text;
    this._length = length;
    this._tokenizer = tokenizer;
  }

  /**
   * The ids of a text: the fixed ones before, the text cut to fit, the fixed ones after, padding.
   * Throws DataError for a text of spaces alone. @param {string} text @returns {Int32Array} (length,)
   */
  ids(text) {
    const { before, after, padding } = this._spec;
    const trimmed = Array.from(text.replace(ENDS, "")).slice(0, LONGEST_TEXT).join("");
    if (!trimmed) throw new DataError("the text is empty");
    const room = this._length - before.length - after.length;
    const tokens = [];
    for (const id of this._tokenizer.ids(trimmed)) {
      if (tokens.length === room) break;
      tokens.push(id);
    }
    const row = new Int32Array(this._length).fill(padding);
    row.set([...before, ...tokens, ...after]);
    return row;
  }

  /** The text of ids, as the model reads it, without fixed ids and padding. @param {ArrayLike<number>} ids */
  text(ids) {
    const { before, after, padding } = this._spec;
    let end = ids.length;
    while (end > 0 && ids[end - 1] === padding) end -= 1;
    return this._tokenizer.text(Array.from(ids).slice(before.length, Math.max(0, end - after.length)));
  }
}

/** The tokenizer of a file, as `encode` in models/text/file.py writes it. Throws BundleError. @param {string} json */
export function tokenizerOf(json) {
  const { model, normalizer, pre_tokenizer: split, added_tokens: added = [] } = JSON.parse(json);
  if (added.some(({ special = true }) => !special)) throw new BundleError("the tokenizer is refused: a token was added as a word");
  if (model?.type === "BPE" && split?.type === "ByteLevel" && !normalizer) return new BytePairs(model, split.add_prefix_space ?? false);
  if (model?.type === "WordPiece" && split?.type === "BertPreTokenizer" && normalizer?.type === "BertNormalizer") return new WordPieces(model, normalizer);
  throw new BundleError("the tokenizer is not read: expected word pieces as BERT's or pairs of bytes as RoBERTa's");
}

/** GPT-2's words, in text of which each character beyond ASCII was replaced by one of its class. */
const WORD = /'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+/g;
/** A printable character for each byte: its own if that is printable, else the next one from U+0100. */
const SYMBOLS = (() => {
  const isOwn = (/** @type {number} */ byte) => (byte >= 33 && byte < 127) || (byte >= 161 && byte < 173) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isOwn(byte) ? byte : next++));
})();
const BYTES = new Map(SYMBOLS.map((symbol, byte) => [symbol, byte]));

class BytePairs {
  /** @param {any} model vocab and merges @param {boolean} lead whether text without a leading space gets one */
  constructor({ vocab, merges }, lead) {
    this._ids = new Map(Object.entries(vocab));
    this._tokens = new Map([...this._ids].map(([token, id]) => [id, token]));
    this._lead = lead;
    /** @type {Map<string, number>} */
    this._ranks = new Map();
    for (const merge of merges) {
      const pair = typeof merge === "string" ? merge : merge.join(" ");
      if (!this._ranks.has(pair)) this._ranks.set(pair, this._ranks.size);
    }
  }

  /** @param {string} text */
  *ids(text) {
    const whole = text.replace(/\p{Surrogate}/gu, "?");
    const characters = Array.from(this._lead && whole && !whole.startsWith(" ") ? ` ${whole}` : whole);
    for (const { 0: word, index } of characters.map(asciiKind).join("").matchAll(WORD)) {
      for (let begin = index; begin < index + word.length; begin += LONGEST) {
        yield* this._merged(characters.slice(begin, Math.min(begin + LONGEST, index + word.length)).join(""));
      }
    }
  }

  /** @param {Iterable<number>} ids */
  text(ids) {
    const symbols = [...ids].map((id) => this._tokens.get(id) ?? "").join("");
    return new TextDecoder().decode(Uint8Array.from(symbols, (symbol) => BYTES.get(symbol) ?? 63));
  }

  /** @param {string} word @returns {number[]} */
  _merged(word) {
    let parts = Array.from(new TextEncoder().encode(word), (byte) => SYMBOLS[byte]);
    while (parts.length > 1) {
      const ranks = parts.slice(1).map((part, i) => this._ranks.get(`${parts[i]} ${part}`) ?? Infinity);
      const best = Math.min(...ranks);
      if (best === Infinity) break;
      const at = ranks.indexOf(best);
      parts = joined(parts, parts[at], parts[at + 1]);
    }
    return parts.map((part) => /** @type {number} */ (this._ids.get(part)));
  }
}

/** An ASCII character of the same class: itself, a letter, a digit, a space, or a mark. @param {string} c */
function asciiKind(c) {
  if (c < "\x80") return c;
  if (/\p{Z}|\x85/u.test(c)) return "\n";
  return /\p{L}/u.test(c) ? "a" : /\p{N}/u.test(c) ? "0" : "!";
}

/** Merges every occurrence of the pair, from the left. @param {string[]} parts */
function joined(parts, first, second) {
  const tokens = [];
  for (const part of parts) {
    if (part === second && tokens.at(-1) === first) tokens[tokens.length - 1] += part;
    else tokens.push(part);
  }
  return tokens;
}

const IDEOGRAPH = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/u;
const SPACE = /[\t\n\r\p{Z}]/u;
const NOTHING = /[\p{Cc}\p{Cf}\p{Co}\ufffd]/u;
const MARK = /[\p{P}!"#$%&'()*+,\-./:;<=>?@[\\\]^_`{|}~]/u;

class WordPieces {
  /** @param {any} model @param {any} normalizer */
  constructor({ vocab, unk_token: unknown = "[UNK]", continuing_subword_prefix: joint = "##", max_input_chars_per_word: longest = 100 }, normalizer) {
    const { handle_chinese_chars: apart = true, strip_accents: accents = null, lowercase = true } = normalizer;
    this._ids = new Map(Object.entries(vocab));
    this._tokens = new Map([...this._ids].map(([token, id]) => [id, token]));
    this._unknown = this._ids.get(unknown);
    if (this._unknown === undefined) throw new BundleError(`the tokenizer is refused: its vocabulary has no '${unknown}'`);
    this._joint = joint;
    this._longest = longest;
    this._cleaning = { apart, accents: accents ?? lowercase, lowercase };
  }

  /** @param {string} text */
  *ids(text) {
    for (const word of wordsOf(cleaned(text, this._cleaning))) yield* this._pieces(Array.from(word));
  }

  /** @param {Iterable<number>} ids */
  text(ids) {
    const tokens = [...ids].map((id) => this._tokens.get(id) ?? "");
    return tokens.map((token, i) => (token.startsWith(this._joint) ? token.slice(this._joint.length) : `${i ? " " : ""}${token}`)).join("");
  }

  /** @param {string[]} word its characters @returns {number[]} */
  _pieces(word) {
    if (word.length > this._longest) return [/** @type {number} */ (this._unknown)];
    const numbers = [];
    for (let begin = 0; begin < word.length; ) {
      const lead = begin ? this._joint : "";
      let end = word.length;
      while (end > begin && !this._ids.has(lead + word.slice(begin, end).join(""))) end -= 1;
      if (end === begin) return [/** @type {number} */ (this._unknown)];
      numbers.push(/** @type {number} */ (this._ids.get(lead + word.slice(begin, end).join(""))));
      begin = end;
    }
    return numbers;
  }
}

/** @param {string} text @param {{apart: boolean, accents: boolean, lowercase: boolean}} cleaning */
function cleaned(text, { apart, accents, lowercase }) {
  const plain = Array.from(text, (c) => (SPACE.test(c) ? " " : NOTHING.test(c) ? "" : apart && IDEOGRAPH.test(c) ? ` ${c} ` : c)).join("");
  const bare = accents ? plain.normalize("NFD").replace(/\p{Mn}/gu, "") : plain;
  return lowercase ? Array.from(bare, (c) => c.toLowerCase()).join("") : bare; // each alone: no final sigma
}

/** Divides text at spaces, which are dropped, and around each punctuation mark. @param {string} text */
function* wordsOf(text) {
  for (const part of text.split(" ")) {
    let word = "";
    for (const c of part) {
      if (!MARK.test(c)) {
        word += c;
        continue;
      }
      if (word) yield word;
      yield c;
      word = "";
    }
    if (word) yield word;
  }
}
