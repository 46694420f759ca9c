"""Reads `tokenizer.json` of the `tokenizers` library, and refuses what it cannot reproduce.

A bundle keeps the part of the file that determines ids; that library computes the same ids from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

import msgspec

from device_runtime.models.errors import BundleError, one_line

from .byte_pairs import SYMBOLS, BytePairs
from .word_pieces import Cleaning, WordPieces

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
    """How text is cleaned, see `word_pieces.Cleaning`; strip_accents: None is the same as `lowercase`."""

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
