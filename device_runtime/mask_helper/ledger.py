"""Stores a mask helper's secret key and which device masks it has summed.

Both are in one file, so that who loses the file loses the key too: what devices sealed for it can then not be
opened at all, and so in no second set. A copy of an earlier day, put back in its place, would not know the
sets since then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nacl.bindings import crypto_scalarmult_base

from device_runtime.broker.wire.durable_database import connect
from device_runtime.broker.wire.durable_files import private_folder, shut_to_others, sync_folder
from device_runtime.broker.wire.sum_messages import MOST_NAMED
from device_runtime.strategies.masking.seeds import KEY_BYTES

from .summing import LedgerError, MaskSet, SumRefused, named

FILE = "masks.sqlite"
VERSION = 1
"""Of the tables."""
_TABLES = """
CREATE TABLE IF NOT EXISTS key (secret BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    number INTEGER PRIMARY KEY, task TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
    UNIQUE (task, run, round)
);
CREATE TABLE IF NOT EXISTS sets (
    number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, content BLOB NOT NULL UNIQUE,
    round INTEGER NOT NULL REFERENCES rounds, kind TEXT NOT NULL, devices INTEGER NOT NULL,
    made INTEGER NOT NULL, noise BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS used (
    round INTEGER NOT NULL REFERENCES rounds, device TEXT NOT NULL, "set" INTEGER NOT NULL REFERENCES sets,
    PRIMARY KEY (round, device)
) WITHOUT ROWID;
"""
_SET = "INSERT INTO sets (id, content, round, kind, devices, made, noise) VALUES (?, ?, ?, ?, ?, ?, ?)"


class Ledger:
    """The file FILE in a folder, which is made if needed; only its owner may read it.

    draw: makes so many random bytes, for the key of a new ledger and for noise. public: the helper's public
    key (X25519). Raises LedgerError, here and in `record`. Only the thread that opened it may use it.
    """

    def __init__(self, folder: Path, draw: Callable[[int], bytes]) -> None:
        self._path, self._draw = folder / FILE, draw
        with self._errors():
            private_folder(folder)
            if self._path.exists():
                shut_to_others(folder)
            self._db = connect(self._path)
            self._prepare()
            for place in (folder, folder.parent):
                sync_folder(place)  # a file is durable only if its name is
            [[self.secret]] = self._db.execute("SELECT secret FROM key").fetchall()
        self.public = crypto_scalarmult_base(self.secret)

    def close(self) -> None:
        self._db.close()

    def record(self, masks: MaskSet, created_at: int) -> bytes:
        """Notes a set, on disk when this returns; the same set may be noted again.

        made: seconds since 1970. Returns the 32 bytes from which its noise is drawn, those of the first time;
        empty without noise. Raises SumRefused where a device's mask of this round is in another set, or
        another set had the same id: then nothing is noted.
        """
        with self._transaction():
            row = self._db.execute("SELECT noise FROM sets WHERE content = ?", (masks.content,)).fetchone()
            if row is None:
                row = (self._new(masks, created_at),)
        return bytes(row[0])

    def _new(self, masks: MaskSet, created_at: int) -> bytes:
        request = masks.request
        if self._db.execute("SELECT 1 FROM sets WHERE id = ?", (request.id,)).fetchone():
            raise SumRefused(
                f"request {request.id.hex()[:12]} was another one before: a new one has its own id"
            )
        of = (request.task, request.run, request.round)
        self._db.execute("INSERT OR IGNORE INTO rounds (task, run, round) VALUES (?, ?, ?)", of)
        [[number]] = self._db.execute(
            "SELECT number FROM rounds WHERE task = ? AND run = ? AND round = ?", of
        ).fetchall()
        self._check_unused(number, masks)
        noise = self._draw(KEY_BYTES) if request.noise_milli else b""
        values = (request.id, masks.content, number, request.kind, len(masks.devices), created_at, noise)
        added = self._db.execute(_SET, values).lastrowid
        rows = ((number, device, added) for device in masks.devices)
        self._db.executemany("INSERT INTO used VALUES (?, ?, ?)", rows)
        return noise

    def check(self, masks: MaskSet) -> None:
        """Raises SumRefused where `record` would do so; notes nothing."""
        with self._errors():
            if self._db.execute("SELECT 1 FROM sets WHERE content = ?", (masks.content,)).fetchone():
                return
            of = (masks.request.task, masks.request.run, masks.request.round)
            query = "SELECT number FROM rounds WHERE task = ? AND run = ? AND round = ?"
            for [number] in self._db.execute(query, of).fetchall():
                self._check_unused(number, masks)

    def _check_unused(self, number: int, masks: MaskSet) -> None:
        query = "SELECT 1 FROM used WHERE round = ? AND device = ?"
        used = [name for name in masks.devices if self._db.execute(query, (number, name)).fetchone()]
        if used:
            request = masks.request
            raise SumRefused(
                f"{named(used)} of {len(masks.devices)} devices: in another set of round {request.round} of "
                f"task {request.task!r} before, and a mask is in one set only",
                used=tuple(used[:MOST_NAMED]),
            )

    def _prepare(self) -> None:
        """Makes the tables and the key of a new ledger."""
        [version] = self._db.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise LedgerError(f"{self._path} is of version {version}, expected {VERSION}")
        if version == 0:
            with self._transaction():
                for statement in _TABLES.split(";"):
                    self._db.execute(statement)
                if not self._db.execute("SELECT 1 FROM key").fetchone():
                    self._db.execute("INSERT INTO key VALUES (?)", (self._draw(KEY_BYTES),))
                self._db.execute(f"PRAGMA user_version={VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # when the disk is full SQLite may have rolled back by itself
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise LedgerError(f"cannot use {self._path}: {error}") from None
