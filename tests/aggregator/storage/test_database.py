"""The run folder's file, when the disk does not do as it is told."""

import pytest

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.storage.database import Database
from device_runtime.aggregator.storage.store import Store


def test_a_commit_that_a_full_disk_refuses_leaves_nothing_and_the_next_one_works(tmp_path):
    database = Database(tmp_path)
    pages = database.rows("PRAGMA page_count")[0][0]
    database.rows(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(RunFolderError, match="full"), database.commit() as db:
        db.execute("INSERT INTO meta VALUES (1, ?, 'r', x'00')", (bytes(100),))
        db.execute(
            "INSERT INTO rounds (round, phase, base) VALUES (1, ?, x'')",
            ("a" * 99999,),
        )
    database.rows("PRAGMA max_page_count = 100000")
    assert database.rows("SELECT * FROM meta") == []
    with database.commit() as db:
        db.execute("INSERT INTO meta VALUES (1, x'01', 'r', x'00')")
    assert len(database.rows("SELECT * FROM meta")) == 1
    database.close()


def test_a_commit_that_fails_at_its_very_end_is_rolled_back(tmp_path):
    database = Database(tmp_path)
    with database.commit() as db:
        db.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE child (id REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")
    database.rows("PRAGMA foreign_keys = ON")
    with pytest.raises(RunFolderError, match="FOREIGN KEY"), database.commit() as db:
        db.execute("INSERT INTO child VALUES (7)")  # noticed at COMMIT only
    with database.commit() as db:
        db.execute("INSERT INTO parent VALUES (1)")
    assert (len(database.rows("SELECT * FROM child")), len(database.rows("SELECT * FROM parent"))) == (0, 1)
    database.close()


def test_a_folder_of_another_version_is_refused_in_words(tmp_path):
    database = Database(tmp_path)
    database.rows("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(RunFolderError, match="run.sqlite has version 99, this version reads"):
        Database(tmp_path)


def test_a_folder_that_cannot_be_opened_is_left_to_the_next_who_tries(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("device_runtime.aggregator.storage.store.Store.tidy", _no_disk)
        with pytest.raises(RunFolderError, match="no disk"):
            Store(tmp_path)
    Store(tmp_path).close()


def _no_disk(store, before):
    raise RunFolderError("no disk")
