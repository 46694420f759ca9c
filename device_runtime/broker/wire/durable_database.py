"""SQLite files that survive a power cut, also on file systems without shared memory or locks.

SQLite's write-ahead log needs both, and CIFS, NFS or FUSE may lack them. A rollback journal takes its place
then, which is slower; without locks nothing keeps a second process from the file.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from .durable_files import PRIVATE, UNSUPPORTED

log = logging.getLogger(__name__)

WAIT_S = 10.0
"""Seconds to wait for another connection's commit."""
_NO_SHARED_MEMORY = ("disk i/o error", "locking protocol", "unable to open database file")
"""What SQLite says where a file system has no shared memory, and where a disk fails."""


def connect(path: Path, synchronous: Literal["FULL", "NORMAL"] = "FULL") -> sqlite3.Connection:
    """Opens a file for writing, which is made for its owner only; without transactions of Python's own.

    With FULL, a commit that has returned survives a power cut. Raises sqlite3.Error, OSError.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, PRIVATE))  # SQLite's other files take its mode
    locks = _has_locks(path.resolve())
    try:
        db = _opened(path, locks, wal=locks)
    except sqlite3.OperationalError as error:
        if str(error).lower() not in _NO_SHARED_MEMORY:
            raise
        if not locks:
            where = "it was written where files can be locked, and its file system here has no locks"
            raise sqlite3.OperationalError(f"{where}: copy its folder to a local disk") from None
        db = _opened(path, locks, wal=False)
        _warn(path, "has no shared memory")
    if not locks:
        _warn(path, "has no locks: start no second process with it")
    db.execute(f"PRAGMA synchronous={synchronous}")
    return db


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Opens a file that another connection may write. Raises sqlite3.Error, OSError."""
    path = path.resolve()
    options = "" if _has_locks(path) else "&nolock=1"
    return sqlite3.connect(f"{path.as_uri()}?mode=ro{options}", uri=True, timeout=WAIT_S)


@cache
def _has_locks(path: Path) -> bool:
    """Whether the file can be locked: SQLite says of one that cannot that it is locked.

    Tried once, before SQLite opens it, as closing a file ends all of a process's locks of it.
    """
    with path.open("rb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            return error.errno not in UNSUPPORTED
    return True


def _opened(path: Path, locks: bool, wal: bool) -> sqlite3.Connection:
    """A connection in this mode of the journal, after a trial of its locks."""
    uri = f"{path.resolve().as_uri()}?mode=rw{'' if locks else '&nolock=1'}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=WAIT_S)
    try:
        if not wal:  # a file that has a write-ahead log is read without shared memory only so
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
        mode = "WAL" if wal else "TRUNCATE"
        [now] = db.execute(f"PRAGMA journal_mode={mode}").fetchone()
        if now.upper() != mode:
            raise sqlite3.OperationalError("locking protocol")
        if not wal:
            db.execute("PRAGMA locking_mode=NORMAL")
        db.execute("BEGIN IMMEDIATE")
        db.execute("ROLLBACK")
    except BaseException:
        with suppress(sqlite3.Error):
            db.close()
        raise
    return db


@cache
def _warn(path: Path, lacks: str) -> None:
    log.warning("%s has SQLite's rollback journal, which is slower, as its file system %s", path, lacks)
