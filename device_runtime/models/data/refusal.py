"""What is left out of the local data, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

EXAMPLES = 3
"""Of each reason that are named."""
REASONS = 30
OTHER = "other reasons"


class Refused(Exception):
    """A file or a sample that is not taken: `reason` is common to all of its sort, `detail` of this one."""

    def __init__(self, reason: str, detail: object = "") -> None:
        self.reason, self.detail = reason, " ".join(str(detail).split())
        super().__init__(f"{reason}: {self.detail}" if self.detail else reason)


class Passing(Refused):
    """What may be otherwise the next time, though its file is the same: it is tried again."""


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

    @property
    def named(self) -> str:
        """The examples, and whether there are more."""
        more = ", .." if self.count > len(self.examples) else ""
        return ", ".join(self.examples) + more

    def __str__(self) -> str:
        return f"{self.reason}: {self.count} ({self.named})"


class Tally:
    """Counts by reason; beyond `REASONS` of them the rest are one."""

    def __init__(self) -> None:
        self._found: dict[str, Skipped] = {}

    def add(self, one: Skip | Skipped) -> None:
        if isinstance(one, Skip):
            one = Skipped(one.reason, 1, (one.where,))
        reason = one.reason if one.reason in self._found or len(self._found) < REASONS else OTHER
        before = self._found.get(reason, Skipped(reason, 0, ()))
        examples = (*before.examples, *one.examples)[:EXAMPLES]
        self._found[reason] = Skipped(reason, before.count + one.count, examples)

    def __iter__(self) -> Iterator[Skipped]:
        """The most frequent first."""
        return iter(sorted(self._found.values(), key=lambda one: (-one.count, one.reason)))
