"""Long reading says how far it is, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

EVERY = 500  # items between two lines
WORTH = 2000  # items that take so long that people want to know


def told(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, and how many of them are done: one moving line on a terminal, else one line at the start."""
    total, moving = len(items), sys.stderr.isatty()
    if total >= WORTH and not moving:
        print(f"reading {total} {what}", file=sys.stderr, flush=True)
    for number, item in enumerate(items):
        if moving and total >= WORTH and number % EVERY == 0:
            print(
                f"\r{what}: {number} of {total} ({number / total:.0%})", end="", file=sys.stderr, flush=True
            )
        yield item
    if moving and total >= WORTH:
        print(f"\r{what}: {total} of {total} (100%)", file=sys.stderr, flush=True)
