"""SQLite files on file systems that lack what its write-ahead log needs."""

import fcntl
import logging
import sqlite3
from contextlib import closing

import pytest

from device_runtime.aggregator.storage.database import Database
from device_runtime.broker.wire import durable_database
from device_runtime.broker.wire.durable_database import connect, connect_to_read
from device_runtime.mask_helper.ledger import Ledger


class NoSharedMemory(sqlite3.Connection):
    """SQLite without shared memory: a write-ahead log fails, except while the file is locked by one alone."""

    def execute(self, sql, *arguments):
        if sql == "PRAGMA journal_mode=WAL":
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *arguments)


@pytest.fixture
def no_shared_memory(monkeypatch):
    real = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda *arguments, **more: real(*arguments, **more, factory=NoSharedMemory)
    )


@pytest.fixture
def no_locks(monkeypatch):
    def none(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", none)


def journal(db):
    return db.execute("PRAGMA journal_mode").fetchone()[0]


def test_where_a_file_system_has_all_a_write_ahead_log_is_used(tmp_path, caplog):
    with closing(connect(tmp_path / "a.sqlite")) as db:
        assert (journal(db), db.execute("PRAGMA synchronous").fetchone()[0]) == ("wal", 2)
    assert not caplog.records


@pytest.mark.parametrize("lacks", ["no_shared_memory", "no_locks"])
def test_where_it_lacks_something_a_rollback_journal_is_and_that_is_said_once(
    tmp_path, caplog, request, lacks
):
    request.getfixturevalue(lacks)
    path = tmp_path / "a.sqlite"
    with closing(connect(path)) as db, closing(connect_to_read(path)) as reader:
        assert (journal(db), db.execute("PRAGMA synchronous").fetchone()[0]) == ("truncate", 2)
        db.execute("CREATE TABLE t (a)")
        for count in (1, 2):
            db.execute("INSERT INTO t VALUES (1)")
            assert reader.execute("SELECT count(*) FROM t").fetchone() == (count,)
    connect(path).close()
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "a.sqlite has SQLite's rollback journal" in line
    assert ("no locks: start no second process" in line) == (lacks == "no_locks")


@pytest.mark.parametrize("lacks", ["no_shared_memory", "no_locks"])
def test_runs_and_mask_helpers_work_there(tmp_path, request, lacks):
    request.getfixturevalue(lacks)
    Database(tmp_path / "run").close()
    Database(tmp_path / "run", reading=True).close()
    first, again = (Ledger(tmp_path / "helper", bytes) for _ in range(2))
    assert first.public == again.public
    for ledger in (first, again):
        ledger.close()


def test_a_file_with_a_write_ahead_log_loses_it_where_there_is_no_shared_memory(tmp_path, request):
    with closing(connect(tmp_path / "a.sqlite")) as db:
        db.execute("CREATE TABLE t (a)")
    request.getfixturevalue("no_shared_memory")
    with closing(connect(tmp_path / "a.sqlite")) as db:
        assert journal(db) == "truncate"
        assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_one_that_cannot_lose_it_for_want_of_locks_is_refused_with_what_to_do(tmp_path, no_locks):
    path = tmp_path / "a.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE t (a)")
    with pytest.raises(sqlite3.OperationalError, match="no locks: copy its folder to a local disk"):
        connect(path)


def test_what_is_locked_by_another_process_waits_and_is_not_taken_for_a_lack_of_locks(tmp_path, monkeypatch):
    path = tmp_path / "a.sqlite"
    monkeypatch.setattr(durable_database, "WAIT_S", 0.01)
    with closing(connect(path)) as db:
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connect(path)
