"""Contributions that are committed together: each receipt after its commit, and one commit for many.

A commit waits for the disk, and each call of the database for other threads; the two are most of what a small
contribution costs. So those that come close to each other are written at once, and what is to be said of them
waits until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from device_runtime.aggregator.intake.contributions import Bytes, Contributions, StoredContribution

from .events import Update

log = logging.getLogger(__name__)


class CommitGroup:
    """What counts already and is not on the disk yet."""

    def __init__(self, contributions: Contributions) -> None:
        self._contributions = contributions
        self._updates: list[Update] = []
        self._said: list[Callable[[], None]] = []

    def keep(self, update: Update, stored: StoredContribution, moved: Bytes) -> None:
        """One more, to be committed with the others."""
        self._contributions.keep(stored, moved)
        self._updates.append(update)

    def then(self, say: Callable[[], None]) -> None:
        """Call this once all that was kept before is on the disk; at once where nothing waits."""
        if self._updates:
            self._said.append(say)
        else:
            say()

    def settle(self) -> None:
        """Commit, then say what is to be said; what cannot be said keeps nothing else from it.

        Raises RunFolderError: none is kept, see `drop`.
        """
        if not self._updates:
            return
        self._contributions.settle()
        said = self._said
        self._updates, self._said = [], []
        for say in said:
            try:
                say()
            except Exception as error:  # whatever it is, the others have their receipts
                log.warning("what is kept could not be told: %s: %s", type(error).__name__, error)

    def drop(self) -> tuple[Update, ...]:
        """It cannot be kept: nothing of it is written, or said. Returns whose contributions they were."""
        lost = tuple(self._updates)
        self._contributions.drop()
        self._updates, self._said = [], []
        return lost
