"""The run folder's SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from device_runtime.aggregator.errors import RunFolderError

from .tables import SQLITE, VERSION, Statement, wrong_version

FILE = "run.sqlite"
"""In the run folder."""


class SqliteFile:
    """An open run.sqlite, as `database.Backend`; of the thread that opened it."""

    def __init__(self, folder: Path, reading: bool) -> None:
        """Raises RunFolderError for another version."""
        self._folder = folder
        with self._errors():
            if reading:
                file = f"{(folder / FILE).resolve().as_uri()}?mode=ro"
                self._db = sqlite3.connect(file, uri=True)
                self._db.row_factory = sqlite3.Row
                _check_version(self._db)
            else:
                self._db = sqlite3.connect(folder / FILE, isolation_level=None)
                _prepare(self._db)

    def close(self) -> None:
        self._db.close()

    def apply(self, statements: Sequence[Statement]) -> None:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in statements:
                    if len(values) == 1:
                        self._db.execute(sql, values[0])
                    else:
                        self._db.executemany(sql, values)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite ends some by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def rows(self, sql: str, values: Sequence[object]) -> list[sqlite3.Row]:
        with self._errors():
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RunFolderError(f"run folder {self._folder}: {error}") from None


def _prepare(db: sqlite3.Connection) -> None:
    """WAL with synchronous=FULL: a commit that has returned survives a power cut."""
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    _check_version(db)
    db.executescript(SQLITE)
    db.execute(f"PRAGMA user_version={VERSION}")


def _check_version(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise RunFolderError(f"{FILE} has {wrong_version(version)}")
