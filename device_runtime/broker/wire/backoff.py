"""How long to wait before connecting again, and what short connections mean. No clock, no sockets."""

from __future__ import annotations

import random

from .packets import backoff

STEADY_S = 5.0
"""Seconds. A connection that lasted less did not count: the back-off goes on growing."""
SUSPICIOUS = 2
"""Short connections in a row after which somebody else with our name is suspected."""


class Patience:
    """The attempts of one link. `bounds_s`: wait before the first, and at most; `seed`: of the jitter."""

    def __init__(self, bounds_s: tuple[float, float], seed: int | None = None) -> None:
        self._bounds_s = bounds_s
        self._random = random.Random(seed)  # noqa: S311 - jitter
        self._failures = 0
        self._short = 0

    def wait_s(self) -> float:
        """Seconds before the next attempt, drawn anew each time."""
        return backoff(self._failures, self._bounds_s, self._random.random())

    def failed(self) -> None:
        """An attempt came to nothing."""
        self._failures += 1

    def lost(self, lasted_s: float) -> None:
        """A connection that was ready ended after `lasted_s` seconds."""
        if lasted_s >= STEADY_S:
            self._failures = self._short = 0
        else:
            self._short += 1

    @property
    def crowded(self) -> bool:
        """Whether connections end as they do when two clients of one name throw each other out."""
        return self._short >= SUSPICIOUS
