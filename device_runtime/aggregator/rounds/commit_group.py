"""Commits several contributions at once, and sends each receipt after its commit.

A commit waits for the disk, and each call of the database for other threads; these two are most of the cost
of a small contribution. So contributions that come close to each other are written together, and receipts
and other reports wait until then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from device_runtime.aggregator.intake.contributions import Contributions, DeviceTraffic, StoredContribution

from .events import Update

log = logging.getLogger(__name__)


class CommitGroup:
    """Contributions that count already and are not on the disk yet."""

    def __init__(self, contributions: Contributions) -> None:
        self._contributions = contributions
        self._updates: list[Update] = []
        self._said: list[Callable[[], None]] = []

    def keep(self, update: Update, stored: StoredContribution, moved: DeviceTraffic) -> None:
        """Adds a contribution, to be committed with the others."""
        self._contributions.keep(stored, moved)
        self._updates.append(update)

    def then(self, say: Callable[[], None]) -> None:
        """Calls `say` when all contributions added before are on the disk; at once where none waits."""
        if self._updates:
            self._said.append(say)
        else:
            say()

    def settle(self) -> None:
        """Commits, then makes the calls that waited; one that fails does not stop the others.

        Raises RunFolderError where the commit fails: nothing is stored then, call `drop`.
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
                log.warning("a report after a commit failed: %s: %s", type(error).__name__, error)

    def drop(self) -> tuple[Update, ...]:
        """Drops all contributions and calls that wait. Returns the dropped contributions."""
        lost = tuple(self._updates)
        self._contributions.drop()
        self._updates, self._said = [], []
        return lost
