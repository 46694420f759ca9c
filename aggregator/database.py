"""The run folder's SQLite file: opened by one process, every commit durable when it returns."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import RunFolderError

FILE = "run.sqlite"
"""In the run folder."""
VERSION = 3

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (
    id INTEGER PRIMARY KEY CHECK (id = 1), task BLOB NOT NULL, run TEXT NOT NULL, bundle BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, phase TEXT NOT NULL, base BLOB NOT NULL, carried BLOB NOT NULL,
    next_base BLOB, next_carried BLOB, served BLOB,
    figures BLOB, record BLOB, note TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS contributions (
    round INTEGER NOT NULL, device TEXT NOT NULL, kind TEXT NOT NULL, into_round INTEGER NOT NULL,
    num_examples INTEGER NOT NULL, metrics BLOB NOT NULL, why TEXT NOT NULL, blob BLOB, body BLOB,
    form TEXT NOT NULL,
    UNIQUE (round, device, kind)
);
CREATE INDEX IF NOT EXISTS by_round ON contributions (into_round, kind, device, round);
CREATE TABLE IF NOT EXISTS asked (
    device TEXT PRIMARY KEY, round INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS present (
    device TEXT PRIMARY KEY, boot INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS traffic (
    round INTEGER NOT NULL, device TEXT NOT NULL, up INTEGER NOT NULL, down INTEGER NOT NULL,
    PRIMARY KEY (round, device)
);
CREATE TABLE IF NOT EXISTS pace (
    round INTEGER PRIMARY KEY, durations BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS versions (
    round INTEGER PRIMARY KEY, published_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rollbacks (
    into_round INTEGER PRIMARY KEY, to_round INTEGER NOT NULL, instead INTEGER NOT NULL, asked_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS steps (
    round INTEGER NOT NULL, position INTEGER NOT NULL, step BLOB NOT NULL, PRIMARY KEY (round, position)
);
"""


class Database:
    """An open run.sqlite. Raises RunFolderError, in every method, when the disk does not do as it is told."""

    def __init__(self, folder: Path, reading: bool = False) -> None:
        """`reading`: beside the process that owns the folder, and nothing is written.

        Raises RunFolderError when another process has the folder open, or for another version.
        """
        self.folder, self._lock = folder, -1
        if reading:
            with self._errors():
                self._db = sqlite3.connect(f"{(folder / FILE).resolve().as_uri()}?mode=ro", uri=True)
                self._db.row_factory = sqlite3.Row
                _check_version(self._db)
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(folder)
        except OSError as error:
            raise RunFolderError(f"cannot use run folder {folder}: {error.strerror or error}") from None
        try:
            with self._errors():
                self._db = sqlite3.connect(folder / FILE, isolation_level=None)
                _prepare(self._db)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Let go of the folder. May be called twice."""
        self._db.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def commit(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, and on the disk when it ends."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite ends some by itself when the disk is full
                    self._db.execute("ROLLBACK")
                raise

    def rows(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """All rows of a query."""
        with self._errors():
            return self._db.execute(sql, values).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RunFolderError(f"run folder {self.folder}: {error}") from None


def _prepare(db: sqlite3.Connection) -> None:
    """WAL with synchronous=FULL: a commit that has returned survives a power cut."""
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    _check_version(db)
    db.executescript(_TABLES)
    db.execute(f"PRAGMA user_version={VERSION}")


def _check_version(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise RunFolderError(f"{FILE} has version {version}, this version reads {VERSION}")


def _locked(folder: Path) -> int:
    """A lock that ends with the process, however it ends."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise RunFolderError(
            f"another aggregator runs in {folder}: stop it, or use another --run-dir"
        ) from None
    return handle
