"""When a device may work, as it goes: its owner's rules, and how long they held it up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from .rules import Verdict

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds for which a look at the rules holds."""

Judged = Callable[[frozenset[str]], Verdict]
"""What the rules say now; it is given those that said no at the last look."""


class Hours:
    """`clock` is the device's own, in seconds; `judged` may be replaced until work begins."""

    def __init__(self, clock: Callable[[], float], judged: Judged = lambda _: Verdict()) -> None:
        self.clock = clock
        self.judged = judged
        self.verdict = Verdict()
        self._looked_s = -inf
        self._lost_s = 0.0
        self._since_s: float | None = None

    def open(self) -> bool:
        """Whether work may be done, as of the last LOOK_S. That it changes is said in the log."""
        now = self.clock()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            before, self.verdict = self.verdict, self.judged(self.verdict.held)
            if before.held != self.verdict.held:
                self._say()
        return self.verdict.allows

    @property
    def reason(self) -> str:
        """Why no work may be done; empty where it may."""
        return f"paused: {'; '.join(self.verdict.reasons)}" if self.verdict.reasons else ""

    def look_again(self) -> None:
        """At the next call of `open`. May be called in a signal handler."""
        self._looked_s = -inf

    @contextmanager
    def held(self) -> Iterator[None]:
        """Work that has begun stands still inside."""
        self._since_s = self.clock()
        try:
            yield
        finally:
            self._lost_s, self._since_s = self.lost(), None

    def lost(self) -> float:
        """Seconds that begun work has stood still, so far."""
        return self._lost_s + (0.0 if self._since_s is None else self.clock() - self._since_s)

    def worked(self) -> float:
        """The clock of the work itself, in seconds: it stands still when the work does."""
        return self.clock() - self.lost()

    def _say(self) -> None:
        if self.verdict.allows:
            log.info("work may be done again")
        else:
            log.info("%s", self.reason)
