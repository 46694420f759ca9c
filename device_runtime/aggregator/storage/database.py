"""The database of a run, SQLite or PostgreSQL: owned by one process, each commit durable on return.

Both use the same SQL (`tables`): `?` stands for a value, and an insertion that may be repeated has an ON
CONFLICT clause. Writes are collected and executed in one transaction at the end of `commit`. If a server is
lost in the middle, the transaction is repeated; each write has the same effect when it is done twice.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from device_runtime.aggregator.errors import RunFolderError, RunInUse
from device_runtime.broker.wire.durable_database import connect, connect_to_read
from device_runtime.broker.wire.durable_files import PRIVATE, lock, private_folder, shut_to_others

from . import tables
from .tables import SQLITE, VERSION, Statement, wrong_version

FILE = "run.sqlite"
"""The SQLite file in the run folder."""


class DatabaseRow(Protocol):
    """A row whose columns are found by position or by name."""

    def __getitem__(self, key: int | str, /) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...


class Backend(Protocol):
    """An open database. Raises RunFolderError, and where it is a server DatabaseError."""

    def apply(self, statements: Sequence[Statement]) -> None:
        """Executes all statements or none; durable on return."""

    def rows(self, sql: str, values: Sequence[object]) -> Sequence[DatabaseRow]: ...

    def close(self) -> None:
        """May be called twice."""


class Commit:
    """The statements of one commit."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    def execute(self, sql: str, values: Sequence[object] = ()) -> None:
        self.statements.append((sql, [values]))

    def executemany(self, sql: str, values: Sequence[Sequence[object]]) -> None:
        """Adds a statement to be executed once for each of `values`."""
        if values:
            self.statements.append((sql, list(values)))


class Database:
    """An open run.

    Every method raises RunFolderError when the disk fails, and DatabaseError when the server is lost; this
    object cannot be used after the latter.
    """

    def __init__(self, folder: Path, reading: bool = False, url: str = "") -> None:
        """Opens a run. `reading`: only reads; another process may own the run.

        `url`: of a PostgreSQL server; empty: the server where the run was begun, or SQLite in the folder.
        Raises RunInUse when another process has the folder open, RunFolderError for another version of the
        tables, DatabaseError for a server that does not answer or refuses us, ModuleNotFoundError without
        psycopg.
        """
        self.folder, self._lock = folder, -1
        if reading:
            self._backend = _opened(folder, url, reading=True)
            return
        try:
            private_folder(folder)
            self._lock = locked_run(folder)
            if has_run(folder):
                shut_to_others(folder)
        except OSError as error:
            raise RunFolderError(f"cannot use run folder {folder}: {error.strerror or error}") from None
        try:
            self._backend = _opened(folder, url, reading=False)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Closes the run. May be called twice."""
        self._backend.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @contextmanager
    def commit(self) -> Iterator[Commit]:
        """Context manager for one transaction: all or nothing, durable when it ends."""
        batch = Commit()
        yield batch
        if batch.statements:
            self._backend.apply(batch.statements)

    def rows(self, sql: str, *values: object) -> Sequence[DatabaseRow]:
        """All rows of a query."""
        return self._backend.rows(sql, values)


def has_run(folder: Path) -> bool:
    """Whether a folder has a run, in SQLite or on a server."""
    return (folder / FILE).exists() or tables.database_place_of(folder) is not None


def _opened(folder: Path, url: str, reading: bool) -> Backend:
    place = tables.database_place_of(folder)
    if not url and place is None:
        return SqliteFile(folder, reading)
    if place is None and (folder / FILE).exists():
        raise RunFolderError(
            f"run folder {folder} keeps its run in {FILE}: leave the database out, or give another --run-dir"
        )
    from .postgres import Postgres

    return Postgres(folder, url, reading)


def locked_run(folder: Path) -> int:
    """Locks the run folder; the lock ends with the process, however that ends. Raises RunInUse, OSError."""
    path = folder / "lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE)
    try:
        lock(handle, path)
    except OSError as error:
        os.close(handle)
        if isinstance(error, BlockingIOError):
            text = f"another aggregator runs in {folder}: stop it, or use another --run-dir"
            raise RunInUse(text) from None
        raise
    return handle


class SqliteFile:
    """An open run.sqlite; implements `Backend`. Only the thread that opened it may use it."""

    def __init__(self, folder: Path, reading: bool) -> None:
        """Raises RunFolderError for another version."""
        self._folder = folder
        with self._errors():
            self._db = connect_to_read(folder / FILE) if reading else connect(folder / FILE)
            try:
                self._db.row_factory = sqlite3.Row
                if reading:
                    _check_version(self._db)
                else:
                    _prepare(self._db)
            except BaseException:
                self._db.close()
                raise

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
                if self._db.in_transaction:  # when the disk is full SQLite may have rolled back by itself
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
        except OSError as error:
            raise RunFolderError(f"run folder {self._folder}: {error.strerror or error}") from None


def _prepare(db: sqlite3.Connection) -> None:
    """Creates the tables."""
    _check_version(db)
    db.executescript(SQLITE)
    db.execute(f"PRAGMA user_version={VERSION}")


def _check_version(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version not in (0, VERSION):
        raise RunFolderError(f"{FILE} has {wrong_version(version)}")
