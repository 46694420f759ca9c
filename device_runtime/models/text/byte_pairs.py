"""Byte-pair tokenizer of GPT-2, RoBERTa and OPT (Radford et al. 2019; Sennrich et al. 2016).

Text is divided into words, each with the space before it. The UTF-8 bytes of a word are merged, pair by pair,
in the order in which the pairs were learnt. Every byte is a token, so that nothing is unknown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise

WORD = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", re.ASCII)
"""GPT-2's words, in text in which `_kind` has replaced each non-ASCII character by an ASCII one."""
SPACES = "\t\n\x0b\x0c\r\x85"
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
    plain = text if text.isascii() else "".join(_kind(c) for c in text)
    for match in WORD.finditer(plain):
        yield text[match.start() : match.end()]


@lru_cache(maxsize=4096)
def _kind(c: str) -> str:
    """An ASCII character of the same class: itself, a letter, a digit, a space, or a mark."""
    if c.isascii():
        return c
    category = unicodedata.category(c)[0]
    return "\n" if category == "Z" or c in SPACES else {"L": "a", "N": "0"}.get(category, "!")


def _joined(parts: list[str], pair: tuple[str, str]) -> list[str]:
    """Merges every occurrence of the pair, from the left."""
    tokens: list[str] = []
    for part in parts:
        if tokens and (tokens[-1], part) == pair:
            tokens[-1] += part
        else:
            tokens.append(part)
    return tokens
