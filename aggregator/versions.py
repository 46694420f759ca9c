"""The models that a run has served, seen from beside the aggregator that may be at work on it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from . import outside
from .errors import RollbackError
from .registry import Registry, Version
from .store import Store


def versions_in(folder: Path, database: str = "") -> tuple[Version, ...]:
    """In the order of their rounds; `database` as in Ports. Raises RunFolderError, DatabaseError."""
    with closing(Store(folder, True, database)) as store:
        return Registry(store, 0).versions()


def check_rollback(folder: Path, to: int, database: str = "") -> None:
    """Raises RollbackError where the run cannot go back to the model of round `to`, and as versions_in."""
    if (folder / outside.FILE).exists():
        raise RollbackError(outside.ITS_ROUNDS)
    kept = [version.round for version in versions_in(folder, database) if version.kept]
    if to not in kept:
        there = ", ".join(map(str, kept)) or "none"
        raise RollbackError(f"no model of round {to} is kept in {folder}; those that are: {there}")
