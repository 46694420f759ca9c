"""What is left out of the local data, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

EXAMPLES = 3
"""Of each reason that are named."""


class Refused(Exception):
    """A file or a sample that is not taken: `reason` is common to all of its sort, `detail` of this one."""

    def __init__(self, reason: str, detail: object = "") -> None:
        self.reason, self.detail = reason, " ".join(str(detail).split())
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


class Skip(NamedTuple):
    """One sample or file that was left out; `where` names it, and says more of it."""

    reason: str
    where: str

    @classmethod
    def of(cls, error: Refused, name: str) -> Skip:
        return cls(error.reason, f"{name}: {error.detail}" if error.detail else name)


@dataclass(frozen=True)
class Skipped:
    """How many were left out for one reason, and the first few of them."""

    reason: str
    count: int
    examples: tuple[str, ...]

    def __str__(self) -> str:
        more = ", .." if self.count > len(self.examples) else ""
        return f"{self.reason}: {self.count} ({', '.join(self.examples)}{more})"


def together(skipped: Iterable[Skip | Skipped]) -> tuple[Skipped, ...]:
    """By reason, the most frequent first."""
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    for one in skipped:
        count, examples = (1, (one.where,)) if isinstance(one, Skip) else (one.count, one.examples)
        before, named = found.get(one.reason, (0, ()))
        found[one.reason] = before + count, (*named, *examples)[:EXAMPLES]
    listed = [Skipped(reason, count, examples) for reason, (count, examples) in found.items()]
    return tuple(sorted(listed, key=lambda one: (-one.count, one.reason)))
