"""Reads `tokenizer.json` of the `tokenizers` library, and refuses what it cannot reproduce.

A bundle keeps the part of the file that determines ids; that library computes the same ids from it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, Protocol

import msgspec

from device_runtime.models.errors import BundleError, one_line

WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
"""GPT-2's words, in text in which `_ascii_kind` has replaced each non-ASCII character by an ASCII one."""
WHITESPACE = "\t\n\x0b\x0c\r\x85"
REMEMBERED = 1 << 14  # words whose ids are kept
LONGEST = 1 << 10
"""Characters that are merged at once; a longer word, which no language has, is cut into parts."""


def _symbols() -> tuple[str, ...]:
    """A printable character for each byte: its own if that is printable, else the next one from U+0100."""
    own = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return tuple(chr(byte if byte in own else next(others)) for byte in range(256))


SYMBOLS = _symbols()


class BytePairs:
    """A byte-pair tokenizer.

    vocabulary: the id of each token, written in `SYMBOLS`; has each symbol, and the result of each merge.
    ranks: the order of each pair to merge, the first learnt first. lead: text without a leading space gets
    one.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], ranks: Mapping[tuple[str, str], int], lead: bool = False
    ) -> None:
        self._vocabulary, self._ranks, self._lead = vocabulary, ranks, lead
        self._word = lru_cache(maxsize=REMEMBERED)(self._merged)

    def ids(self, text: str) -> Iterator[int]:
        """The id of each token, in order. Half of a surrogate pair, which is no Unicode, becomes a "?"."""
        for word in words(f" {text}" if self._lead and text[:1] not in ("", " ") else text):
            for begin in range(0, len(word), LONGEST):
                yield from self._word(word[begin : begin + LONGEST])

    def _merged(self, word: str) -> tuple[int, ...]:
        parts = [SYMBOLS[byte] for byte in word.encode("utf-8", "replace")]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = _joined(parts, best)
        return tuple(self._vocabulary[part] for part in parts)


def words(text: str) -> Iterator[str]:
    """Cuts text into runs of letters, of digits, of others, each with one space before it, and of spaces."""
    plain = text if text.isascii() else "".join(_ascii_kind(c) for c in text)
    for match in WORD.finditer(plain):
        yield text[match.start() : match.end()]


@lru_cache(maxsize=4096)
def _ascii_kind(c: str) -> str:
    """An ASCII character of the same class: itself, a letter, a digit, a space, or a mark."""
    if c.isascii():
        return c
    category = unicodedata.category(c)[0]
    return "\n" if category == "Z" or c in WHITESPACE else {"L": "a", "N": "0"}.get(category, "!")


def _joined(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """Merges every occurrence of the pair, from the left."""
    tokens: list[str] = []
    for part in parts:
        if tokens and (tokens[-1], part) == pair:
            tokens[-1] += part
        else:
            tokens.append(part)
    return tokens


SPACES = "\t\n\r"
ASCII_MARKS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
IDEOGRAPHS = (
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2B81F),
    (0x2B920, 0x2CEAF), (0x2F800, 0x2FA1F),
)  # fmt: skip
"""Ranges of characters of which each is a word of its own."""

LETTER, SPACE, MARK, NOTHING = range(4)


@dataclass(frozen=True)
class Cleaning:
    """How text is cleaned before it is cut; ideographs_apart: each ideograph becomes a word."""

    lowercase: bool
    strip_accents: bool
    ideographs_apart: bool


@dataclass(frozen=True)
class WordPieces:
    """A word-piece tokenizer.

    vocabulary: the id of each piece; those that continue a word begin with `joint`. unknown: the id of a word
    of more than `longest` characters, or one that has no pieces.
    """

    vocabulary: Mapping[str, int]
    unknown: int
    cleaning: Cleaning
    joint: str = "##"
    longest: int = 100

    def ids(self, text: str) -> Iterator[int]:
        """The id of each piece, in order."""
        for word in _words(_cleaned(text, self.cleaning)):
            yield from self._pieces(word)

    def _pieces(self, word: str) -> list[int]:
        if len(word) > self.longest:
            return [self.unknown]
        numbers: list[int] = []
        begin = 0
        while begin < len(word):
            lead = self.joint if begin else ""
            for end in range(len(word), begin, -1):
                if (number := self.vocabulary.get(lead + word[begin:end])) is not None:
                    numbers.append(number)
                    begin = end
                    break
            else:
                return [self.unknown]
        return numbers


def _cleaned(text: str, how: Cleaning) -> str:
    symbols = "".join(_character(c, how.ideographs_apart) for c in text)
    if how.strip_accents:
        apart = unicodedata.normalize("NFD", symbols)
        symbols = "".join(c for c in apart if unicodedata.category(c) != "Mn")
    return "".join(c.lower() for c in symbols) if how.lowercase else symbols  # each alone: no final sigma


def _character(c: str, ideographs_apart: bool) -> str:
    """The character, with spaces around an ideograph; " " for any space, "" for a control character."""
    kind = _kind_of(c)
    if kind == SPACE:
        return " "
    if kind == NOTHING:
        return ""
    return f" {c} " if ideographs_apart and any(a <= ord(c) <= b for a, b in IDEOGRAPHS) else c


@lru_cache(maxsize=4096)
def _kind_of(c: str) -> int:
    category = unicodedata.category(c)
    if c in SPACES or category[0] == "Z":
        return SPACE
    if category in ("Cc", "Cf", "Co") or c == "\ufffd":
        return NOTHING
    return MARK if category[0] == "P" or c in ASCII_MARKS else LETTER


def _words(text: str) -> Iterator[str]:
    """Divides text at spaces, which are dropped, and around each punctuation mark."""
    for part in text.split(" "):
        begin = 0
        for place, c in enumerate(part):
            if _kind_of(c) == MARK:
                if begin < place:
                    yield part[begin:place]
                yield c
                begin = place + 1
        if begin < len(part):
            yield part[begin:]


Form = Literal["word-pieces/1", "byte-pairs/1"]
"""The tokenizers, each with a version: a change of its ids gets a new number."""

MOST_IDS = 1 << 22
LONGEST_WORD = 1 << 10  # characters; published files have 100


class Tokenizer(Protocol):
    """Turns text into token ids, without the fixed ids before and after it."""

    def ids(self, text: str) -> Iterator[int]:
        """The ids in order. The name of a special token in a text is treated as text."""


class Added(msgspec.Struct, frozen=True):
    """A token in addition to the learnt ones, such as <mask>."""

    id: int
    content: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class BertNormalizer(msgspec.Struct, frozen=True, tag_field="type"):
    """How text is cleaned, see `Cleaning`; strip_accents: None is the same as `lowercase`."""

    clean_text: Literal[True] = True
    handle_chinese_chars: bool = True
    strip_accents: bool | None = None
    lowercase: bool = True


class BertPreTokenizer(msgspec.Struct, frozen=True, tag_field="type"):
    """Divides at spaces and punctuation."""


class ByteLevel(msgspec.Struct, frozen=True, tag_field="type"):
    """Divides as GPT-2 does. add_prefix_space: text without a leading space gets one."""

    add_prefix_space: bool = False
    trim_offsets: bool = True
    use_regex: Literal[True] = True


class WordPiece(msgspec.Struct, frozen=True, tag_field="type"):
    """The model of `WordPieces`."""

    vocab: dict[str, int]
    unk_token: str = "[UNK]"  # noqa: S105
    continuing_subword_prefix: str = "##"
    max_input_chars_per_word: int = 100


class BPE(msgspec.Struct, frozen=True, tag_field="type"):
    """The model of `BytePairs`; pairs are "a b", as in older files, or [a, b]."""

    vocab: dict[str, int]
    merges: list[str | tuple[str, str]]
    dropout: None = None
    unk_token: str | None = None
    continuing_subword_prefix: Literal[""] | None = None
    end_of_word_suffix: Literal[""] | None = None
    fuse_unk: bool = False
    byte_fallback: Literal[False] = False
    ignore_merges: Literal[False] = False


class TokenizerFile(msgspec.Struct, frozen=True):
    """The parts of the file that are read; the manifest has the rest: fixed ids, length, padding."""

    model: WordPiece | BPE
    normalizer: BertNormalizer | None = None
    pre_tokenizer: BertPreTokenizer | ByteLevel | None = None
    added_tokens: tuple[Added, ...] = ()
    version: str = "1.0"

    @property
    def form(self) -> Form:
        """The form of its tokenizer."""
        return "byte-pairs/1" if isinstance(self.model, BPE) else "word-pieces/1"

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of each token, including special ones."""
        return {**self.model.vocab, **{token.content: token.id for token in self.added_tokens}}

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return 1 + max(self.vocabulary.values(), default=-1)

    def tokenizer(self) -> Tokenizer:
        """Makes the tokenizer. Raises BundleError for parts that do not fit each other."""
        ids = self.vocabulary.values()
        if not ids or min(ids) < 0 or max(ids) >= MOST_IDS:
            raise _refused(f"its ids are not all from 0 to {MOST_IDS - 1}")
        if named := [token.content for token in self.added_tokens if not token.special]:
            raise _refused(f"{named[0]!r} was added as a word, which is not read")
        return _byte_pairs(self) if isinstance(self.model, BPE) else _word_pieces(self)


def decode(data: bytes) -> TokenizerFile:
    """Reads the file. Raises BundleError for a damaged file, or a kind of tokenizer that is not supported."""
    try:
        return msgspec.json.decode(data, type=TokenizerFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        read = "word pieces as BERT's or pairs of bytes as RoBERTa's"
        raise BundleError(f"the tokenizer is not read ({one_line(error)}): expected {read}") from error


def encode(file: TokenizerFile) -> bytes:
    """The file as JSON; equal files give equal bytes."""
    return msgspec.json.encode(file)


def _word_pieces(file: TokenizerFile) -> WordPieces:
    model, clean = file.model, file.normalizer
    if (
        not isinstance(file.pre_tokenizer, BertPreTokenizer)
        or clean is None
        or not isinstance(model, WordPiece)
    ):
        raise _refused("word pieces need BertNormalizer and BertPreTokenizer")
    if model.unk_token not in model.vocab:
        raise _refused(f"its vocabulary has no {model.unk_token!r}")
    if model.max_input_chars_per_word > LONGEST_WORD:
        raise _refused(f"its words may have {model.max_input_chars_per_word} characters, not {LONGEST_WORD}")
    accents = clean.lowercase if clean.strip_accents is None else clean.strip_accents
    cleaning = Cleaning(clean.lowercase, accents, clean.handle_chinese_chars)
    unknown = model.vocab[model.unk_token]
    joint, longest = model.continuing_subword_prefix, model.max_input_chars_per_word
    return WordPieces(model.vocab, unknown, cleaning, joint, longest)


def _byte_pairs(file: TokenizerFile) -> BytePairs:
    model, split = file.model, file.pre_tokenizer
    if not isinstance(split, ByteLevel) or file.normalizer is not None or not isinstance(model, BPE):
        raise _refused("pairs of bytes need the pre-tokenizer ByteLevel, and no normalizer")
    if missing := [symbol for symbol in SYMBOLS if symbol not in model.vocab]:
        raise _refused(f"its vocabulary lacks {len(missing)} of 256 bytes")
    ranks: dict[tuple[str, str], int] = {}
    for merge in model.merges:
        first, _, second = merge.partition(" ") if isinstance(merge, str) else (merge[0], "", merge[1])
        if first + second not in model.vocab:
            raise _refused(
                f"it merges {first!r} and {second!r}, and its vocabulary has no {first + second!r}"
            )
        ranks.setdefault((first, second), len(ranks))
    return BytePairs(model.vocab, ranks, split.add_prefix_space)


def _refused(why: str) -> BundleError:
    return BundleError(f"the tokenizer is refused: {why}")
