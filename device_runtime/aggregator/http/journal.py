"""A log of contributions and refusals for people, in a SQLite file that its own thread writes.

The contributions that count are in run.sqlite, committed before their receipt; this is an additional log. A
crash may lose the last fraction of a second. Contributions that counted are added again when their round
closes, or at the next start. A failing disk loses lines, but never stops the loop.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from device_runtime.aggregator.limits import RateLimit
from device_runtime.aggregator.machine.run_events import (
    Contributed,
    ContributionRecord,
    ContributionRefused,
    RoundClosed,
    RunEvent,
    Started,
)
from device_runtime.broker.wire.durable_database import connect, connect_to_read

from .shapes import Entries, LogEntry, measured

log = logging.getLogger(__name__)

FILE = "journal.sqlite"
KEPT_LINES = {"accepted": 1_000_000, "refused": 100_000, "late": 100_000, "duplicate": 100_000}
"""Lines that are kept of each status; the oldest are removed first."""
MOST_WAITING_LINES = 50_000
"""Lines that may wait to be written; any more are dropped and counted."""
REFUSALS, REFUSALS_RATE = 200.0, 0.1
"""Refusals of a device that are written at once, and each second after that; others are in no log."""
LARGEST = 2**63 - 1
"""The largest integer that SQLite holds."""
COMMIT_EVERY_S = 0.2
"""Seconds for which lines are collected for one commit."""
PRUNE_EVERY = 10_000
"""Lines written between two removals of old ones."""

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL, round INTEGER NOT NULL, device TEXT NOT NULL,
    kind TEXT NOT NULL, status TEXT NOT NULL, why TEXT NOT NULL, num_examples INTEGER, train_loss REAL,
    train_s REAL, energy_j REAL, bytes_up INTEGER, bytes_down INTEGER
);
CREATE INDEX IF NOT EXISTS by_round ON entries (round, status);
CREATE INDEX IF NOT EXISTS by_device ON entries (device, id);
CREATE INDEX IF NOT EXISTS by_status ON entries (status, id);
"""
UNWRITABLE = (
    OverflowError,
    UnicodeError,
    sqlite3.DataError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)
"""Errors of one line, not of the file."""
CLOSE_S = 10.0
"""Seconds that `close` waits for lines to be written."""
_INSERT = "INSERT INTO entries VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

Line = tuple[object, ...]


@dataclass(frozen=True)
class Filter:
    """Selects lines before `before`, and by device, kind, status or round where these are given."""

    before: int | None = None
    limit: int = 100
    device: str | None = None
    kind: str | None = None
    status: str | None = None
    round: int | None = None


class Journal:
    """An observer that never waits; `page` reads from any thread. `clock` gives seconds since 1970."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self._path = folder / FILE
        self._clock = clock
        self._queue: queue.Queue[Line | RoundClosed | None] = queue.Queue(MOST_WAITING_LINES)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._db: sqlite3.Connection | None = None  # of the thread
        self._since_pruned = 0
        self._failing = False
        self._refusals = RateLimit(REFUSALS, REFUSALS_RATE)
        self.dropped = 0
        """Lines that were lost: too many waited, or the disk failed."""

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                if not self._thread.is_alive():
                    self._thread.start()
                for closed in event.closed:
                    self._put(closed)
            case Contributed(record=record):
                self._put(_counted(record, self._clock()))
            case ContributionRefused() if self._refusals.lets(event.device, self._clock()):
                number = min(event.round, LARGEST)  # a refused contribution may name any round
                line = (number, event.device, event.kind, event.status, event.reason)
                self._put((self._clock(), *line, *(None,) * 6))
            case RoundClosed():
                self._put(event)

    def close(self) -> None:
        """Write waiting lines and end the thread; waits at most CLOSE_S for a disk that hangs."""
        if not self._thread.is_alive():
            return
        until_s = time.monotonic() + CLOSE_S
        with suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_S)
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s: the last lines are not written: the disk does not answer", self._path)

    def page(self, query: Filter) -> Entries:
        """The selected lines, the latest first. Raises OSError if the file cannot be read now."""
        if not self._path.exists():
            return Entries([], None)
        columns = {"device": query.device, "kind": query.kind, "status": query.status, "round": query.round}
        where = [f"{column} = ?" for column, value in columns.items() if value is not None]
        values: list[object] = [value for value in columns.values() if value is not None]
        if query.before is not None:
            where.append("id < ?")
            values.append(query.before)
        condition = f"WHERE {' AND '.join(where)}" if where else ""
        sql = f"SELECT * FROM entries {condition} ORDER BY id DESC LIMIT ?"  # noqa: S608 - columns are ours
        try:
            with closing(connect_to_read(self._path)) as db:
                rows = db.execute(sql, [*values, query.limit]).fetchall()
        except sqlite3.Error as error:
            if str(error).startswith("no such table"):  # it is being made at this moment
                return Entries([], None)
            raise OSError(f"cannot read {self._path}: {error}") from None
        entries = [LogEntry(*row) for row in rows]
        return Entries(entries, entries[-1].id if len(entries) == query.limit else None)

    def _put(self, item: Line | RoundClosed) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def _run(self) -> None:
        more = True
        while more:
            items, more = self._gather()
            if items:
                self._write(items)
        self._let_go()

    def _gather(self) -> tuple[list[Line | RoundClosed], bool]:
        """All items that come within COMMIT_EVERY_S of the first, and whether more may come."""
        items: list[Line | RoundClosed] = []
        item = self._queue.get()
        until_s = time.monotonic() + COMMIT_EVERY_S
        with suppress(queue.Empty):
            while item is not None:
                items.append(item)
                if (left_s := until_s - time.monotonic()) <= 0:
                    return items, True
                item = self._queue.get(timeout=left_s)
            return items, False
        return items, True

    def _write(self, items: list[Line | RoundClosed]) -> None:
        try:
            self._db = self._db or self._open()
            with self._db as db:
                for item in items:
                    for line in _missing(db, item) if isinstance(item, RoundClosed) else (item,):
                        self._insert(db, line)
            self._since_pruned += len(items)
            if self._since_pruned >= PRUNE_EVERY:
                self._since_pruned = 0
                _prune(self._db)
            self._failing = False
        except Exception as error:  # the next lines may succeed
            self.dropped += len(items)
            if not self._failing:
                log.warning("%s: %s; lines are lost until it can be written", self._path, error)
            self._failing = True
            self._let_go()

    def _insert(self, db: sqlite3.Connection, line: Line) -> None:
        """Write a line; a line that cannot be written is skipped."""
        try:
            db.execute(_INSERT, line)
        except UNWRITABLE as error:
            self.dropped += 1
            log.warning("%s: a line is skipped: %s", self._path, error)

    def _let_go(self) -> None:
        if self._db:
            with suppress(sqlite3.Error):
                self._db.close()
        self._db = None

    def _open(self) -> sqlite3.Connection:
        try:
            return _opened(self._path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            log.warning("%s is damaged (%s): moved to .damaged, a new one is started", self._path, error)
            self._path.replace(self._path.with_suffix(".damaged"))
            for beside in ("-wal", "-shm"):
                self._path.with_name(FILE + beside).unlink(missing_ok=True)
            return _opened(self._path)


def _opened(path: Path) -> sqlite3.Connection:
    db = connect(path, synchronous="NORMAL")
    try:
        db.isolation_level = "DEFERRED"  # changes wait for a commit
        db.executescript(_TABLES)
    except BaseException:
        db.close()
        raise
    return db


def _counted(record: ContributionRecord, at: float | None) -> Line:
    return (
        at,
        record.round,
        record.device,
        record.kind,
        "accepted",
        record.why,
        record.num_examples,
        measured(record.train_loss),
        measured(record.train_time_s),
        measured(record.energy_j),
        record.bytes_up,
        record.bytes_down,
    )


def _missing(db: sqlite3.Connection, closed: RoundClosed) -> list[Line]:
    """The lines of contributions that counted in a round but are missing here.

    `user_version` is the last round of which lines were removed; its lines are not added again.
    """
    number = closed.record.round
    if number <= db.execute("PRAGMA user_version").fetchone()[0]:
        return []
    rows = db.execute("SELECT device, kind FROM entries WHERE round = ? AND status = 'accepted'", (number,))
    here = Counter((device, kind) for device, kind in rows)
    lines: list[Line] = []
    for record in closed.contributions:
        key = (record.device, record.kind)
        if not here[key]:
            lines.append(_counted(record, None))
        else:
            here[key] -= 1
    return lines


def _prune(db: sqlite3.Connection) -> None:
    """Remove the oldest lines of each status, beyond KEPT_LINES."""
    for status, most in KEPT_LINES.items():
        row = db.execute(
            "SELECT id FROM entries WHERE status = ? ORDER BY id DESC LIMIT 1 OFFSET ?", (status, most)
        ).fetchone()
        if row is None:
            continue
        gone = "status = ? AND id <= ?"
        with db:
            if status == "accepted":
                last = f"SELECT max(round) FROM entries WHERE {gone}"  # noqa: S608 - no value in it
                number = int(db.execute(last, (status, row[0])).fetchone()[0])
                db.execute(f"PRAGMA user_version = {number}")
            db.execute(f"DELETE FROM entries WHERE {gone}", (status, row[0]))  # noqa: S608 - no value in it
