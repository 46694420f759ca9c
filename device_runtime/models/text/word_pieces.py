"""Word-piece tokenizer of BERT (Devlin et al. 2019).

Text is cleaned as `BertNormalizer` of the `tokenizers` library does, and divided at spaces and punctuation.
Each word is cut from its beginning into the longest pieces that the vocabulary has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

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
    kind = _kind(c)
    if kind == SPACE:
        return " "
    if kind == NOTHING:
        return ""
    return f" {c} " if ideographs_apart and any(a <= ord(c) <= b for a, b in IDEOGRAPHS) else c


@lru_cache(maxsize=4096)
def _kind(c: str) -> int:
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
            if _kind(c) == MARK:
                if begin < place:
                    yield part[begin:place]
                yield c
                begin = place + 1
        if begin < len(part):
            yield part[begin:]
