"""Contributions that are committed together: each receipt after its commit, and one commit for many.

A commit waits for the disk, and that wait is most of what a small contribution costs. So those that come
close to each other are written one by one and committed once; what is to be said of them waits until then.
"""

from __future__ import annotations

from collections.abc import Callable

from .contributions import Bytes, Contributions, Stored
from .moves import Update


class Group:
    """What is written and not committed yet. `updates` are its contributions, in order."""

    def __init__(self, contributions: Contributions) -> None:
        self._contributions = contributions
        self._said: list[Callable[[], None]] = []
        self.updates: list[Update] = []

    def keep(self, update: Update, stored: Stored, moved: Bytes) -> None:
        """Write one more. Raises RunFolderError: then none of the group is kept, see `drop`."""
        self.updates.append(update)
        self._contributions.keep(stored, moved)

    def then(self, say: Callable[[], None]) -> None:
        """Call this once all that was written before is on the disk; at once where nothing waits."""
        if self.updates:
            self._said.append(say)
        else:
            say()

    def settle(self) -> None:
        """Commit, then say what is to be said. Raises RunFolderError as `keep` does."""
        if not self.updates:
            return
        self._contributions.settle()
        said, self._said = self._said, []
        self.updates.clear()
        for say in said:
            say()

    def drop(self) -> tuple[Update, ...]:
        """The disk has refused it: nothing of it is said. Returns whose contributions they were."""
        lost = tuple(self.updates)
        self.updates.clear()
        self._said.clear()
        return lost
