"""Runs in PostgreSQL: a server that is away, refuses us, or is lost in the middle; and who owns a run."""

import argparse
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import closing, suppress

import psycopg
import pytest

from device_runtime import cli
from device_runtime.aggregator.configuration.config import database_for
from device_runtime.aggregator.errors import ConfigError, DatabaseError, RunFolderError
from device_runtime.aggregator.storage import tables as place
from device_runtime.aggregator.storage.database import Database
from device_runtime.aggregator.storage.postgres import (
    PATIENCE_S,
    PostgresServer,
    Waiting,
    connect,
    schema_for,
    with_password,
)
from device_runtime.aggregator.storage.store import Identity, Store
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.link import Received
from device_runtime.cli.operator import serve as command

ASK = "INSERT INTO asked VALUES (?, ?) ON CONFLICT DO NOTHING"
MINE = Identity(b"{}", "run", bytes(32))


class Wire:
    """Between an aggregator and the server. `closed`: nobody is there. `lose`: the answer to the next message
    that has these bytes in it does not come, and the connection ends.
    """

    def __init__(self, server):
        self._port, self.lose = server.port, b""
        self.begun = 0
        self.open()

    def open(self):
        self._listener = socket.create_server(("127.0.0.1", getattr(self, "port", 0)))
        self.port = self._listener.getsockname()[1]
        self._pairs = []
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self):
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self):
        for connection in [side for pair in self._pairs for side in pair]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._pairs = []

    @property
    def url(self):
        return f"postgresql://fl@127.0.0.1:{self.port}/fl"

    def _accept(self, listener):
        while True:
            try:
                here, _ = listener.accept()
            except OSError:
                return
            self.begun += 1
            server = socket.create_connection(("127.0.0.1", self._port))
            pair = (here, server)
            self._pairs.append(pair)
            is_lost = threading.Event()
            for up in (True, False):
                threading.Thread(target=self._pump, args=(pair, up, is_lost), daemon=True).start()

    def _pump(self, pair, up, is_lost):
        source, target = pair if up else pair[::-1]
        with suppress(OSError):
            while data := source.recv(65536):
                if up and self.lose and self.lose in data:
                    self.lose = b""
                    is_lost.set()
                if not up and is_lost.is_set():
                    break
                target.sendall(data)
        for side in pair:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(postgres):
    new_wire = Wire(postgres)
    yield new_wire
    new_wire.close()


@pytest.fixture
def opened(tmp_path):
    """An open database in a folder of its own, that waits as a test's clock says."""
    databases = []

    def make(url="", folder="run", clock=None, reading=False):
        database = Database(tmp_path / folder, reading, url)
        databases.append(database)
        if clock is not None:
            database._backend._waiting = Waiting(PATIENCE_S, clock, clock.sleep)
        return database

    yield make
    for database in databases:
        database.close()


def rows_of(database):
    return [tuple(row) for row in database.rows("SELECT device, round FROM asked ORDER BY device")]


def ask(database, *devices):
    with database.commit() as db:
        db.executemany(ASK, [(device, 1) for device in devices])


def copied(tmp_path, folder):
    """The run folder on another machine, which knows nothing of locks on this one."""
    return shutil.copytree(tmp_path / "run", tmp_path / folder).name


@pytest.mark.slow
def test_what_is_committed_is_there_after_the_server_was_killed(postgres, opened, clock):
    database = opened(postgres.url, clock=clock)
    ask(database, "a", "b")
    postgres.kill()
    postgres.start()
    assert rows_of(database) == [("a", 1), ("b", 1)]
    database.close()
    assert rows_of(opened()) == [("a", 1), ("b", 1)]


def test_a_commit_waits_for_the_server_s_disk_whatever_its_default(postgres, opened):
    postgres.sql("ALTER DATABASE fl SET synchronous_commit = off")
    try:
        assert opened(postgres.url).rows("SHOW synchronous_commit")[0][0] == "on"
    finally:
        postgres.sql("ALTER DATABASE fl RESET synchronous_commit")


def test_of_a_commit_that_fails_nothing_is_kept_and_the_next_one_works(postgres, opened):
    database = opened(postgres.url)
    with pytest.raises(RunFolderError, match="null value"), database.commit() as db:
        db.execute(ASK, ("a", 1))
        db.execute(ASK, ("b", None))
    assert rows_of(database) == []
    ask(database, "c")
    assert rows_of(database) == [("c", 1)]


def test_runs_in_one_database_have_nothing_in_common(postgres, opened):
    first, second = opened(postgres.url, "first"), opened(postgres.url, "second")
    ask(first, "a")
    ask(second, "b")
    assert (rows_of(first), rows_of(second)) == ([("a", 1)], [("b", 1)])


@pytest.mark.parametrize("name", ["digits", "Ziffern & Buchstaben", "2026", "x" * 90, "ü"])
def test_a_run_s_schema_is_named_after_its_folder_and_no_two_are_alike(name):
    schema, other = schema_for(name), schema_for(name)
    assert schema != other
    assert schema.isidentifier() and schema == schema.lower() and len(schema) < 64


def test_a_cut_connection_is_sought_again_and_nothing_is_lost(wire, opened, clock, caplog):
    database = opened(wire.url, clock=clock)
    ask(database, "a")
    wire.cut()
    ask(database, "b")
    wire.cut()
    assert rows_of(database) == [("a", 1), ("b", 1)]
    assert wire.begun == 3
    own = [record.message for record in caplog.records if record.name.endswith("postgres")]
    assert [text.split(":")[0].split(" at ")[0] for text in own] == ["PostgreSQL"] * 4


def test_a_commit_whose_answer_was_lost_counts_once(wire, opened, clock):
    database = opened(wire.url, clock=clock)
    wire.lose = b"COMMIT"
    ask(database, "a")
    assert wire.lose == b""
    assert rows_of(database) == [("a", 1)]


def test_a_server_that_is_away_is_waited_for(wire, opened, clock):
    database = opened(wire.url, clock=clock)
    slept, sleep = [], clock.sleep

    def waiting(seconds):
        slept.append(seconds)
        sleep(seconds)
        if sum(slept) > PATIENCE_S / 2 and len(slept) < 100:
            wire.open()
            slept.extend([0.0] * 100)

    database._backend._waiting = Waiting(PATIENCE_S, clock, waiting)
    wire.close()
    ask(database, "a")
    assert rows_of(database) == [("a", 1)]
    assert slept[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]


def test_a_server_that_stays_away_is_the_end_and_says_so_from_then_on(wire, opened, clock):
    database = opened(wire.url, clock=clock)
    wire.close()
    for _ in range(2):
        with pytest.raises(
            DatabaseError, match=r"PostgreSQL at 127\.0\.0\.1:\d+, database fl is away for 60 s: "
        ):
            ask(database, "a")
    assert clock.now >= PATIENCE_S
    wire.open()
    with pytest.raises(DatabaseError):
        rows_of(database)


def test_a_service_whose_database_is_gone_ends_and_tells_no_device_that_it_was_kept(
    bench, make_task, update_of, wire, clock
):
    b = bench(make_task("class-means", min_contributions=3, min_devices=3))
    b.service.close()
    b.folder, b.database = b.folder.with_name("another"), wire.url
    b.__post_init__()
    b.join("pi-01", "pi-02", "pi-03")
    b.store._db._backend._waiting = Waiting(PATIENCE_S, clock, clock.sleep)
    message = b.contribution("class-means", update_of("class-means", 1))
    assert [receipt.status for receipt in b.contribute("pi-01", message)] == ["accepted"]
    wire.close()
    for device in ("pi-02", "pi-03"):
        with pytest.raises(DatabaseError, match="is away for 60 s"):
            b.service.handle(Received(topics.up(device, "contribution"), messages.encode(message)))
        assert b.receipts(device) == []


def test_only_one_has_a_run_also_from_another_machine(postgres, opened, tmp_path, monkeypatch):
    monkeypatch.setattr("device_runtime.aggregator.storage.postgres.LOCK_S", 0.3)
    first = opened(postgres.url)
    with pytest.raises(
        RunFolderError, match=f"run folder {tmp_path}/run: another|another aggregator runs in"
    ):
        opened()
    elsewhere = copied(tmp_path, "there")
    with pytest.raises(RunFolderError, match="another aggregator has run run_.* open: stop it first"):
        opened(folder=elsewhere)
    first.close()
    ask(opened(folder=elsewhere), "a")


OWNER = """
import sys, time
from pathlib import Path
from device_runtime.aggregator.storage.database import Database
database = Database(Path(sys.argv[1]), url=sys.argv[2])
with database.commit() as db:
    db.execute("INSERT INTO asked VALUES ('a', 1)")
print("open", flush=True)
time.sleep(600)
"""


def test_an_owner_that_is_killed_leaves_the_run_to_the_next(postgres, opened, tmp_path):
    command = [sys.executable, "-c", OWNER, tmp_path / "run", postgres.url]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout.readline() == "open\n"
        finally:
            owner.kill()
    assert rows_of(opened()) == [("a", 1)]


def test_whoever_has_lost_a_run_to_another_does_not_go_on_with_it(wire, opened, clock, tmp_path):
    first = opened(wire.url, clock=clock)
    elsewhere = copied(tmp_path, "there")
    wire.cut()
    second = opened(folder=elsewhere)
    ask(second, "b")
    second.close()
    with pytest.raises(DatabaseError, match="another aggregator has had run"):
        ask(first, "a")
    with pytest.raises(DatabaseError, match="another aggregator has had run"):
        rows_of(first)
    assert rows_of(opened(folder=elsewhere)) == [("b", 1)]


def test_a_connection_that_only_the_server_still_has_is_ended_by_its_owner(postgres, opened, clock):
    database = opened(postgres.url, clock=clock)
    backend = database._backend
    stale, backend._connection = backend._connection, connect(backend._server, backend._claim)
    backend._connection.close()
    ask(database, "a")  # the lock was the stale connection's
    with pytest.raises(psycopg.OperationalError):
        stale.execute("SELECT 1")
    assert rows_of(database) == [("a", 1)]


def test_beside_its_owner_a_run_is_read_and_not_written(postgres, opened):
    ask(opened(postgres.url), "a")
    beside = opened(reading=True)
    assert rows_of(beside) == [("a", 1)]
    with pytest.raises(RunFolderError, match="read-only"):
        ask(beside, "b")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("postgresql://fl@127.0.0.1:{closed}/fl", "refused"),
        ("postgresql://locked:wrong@127.0.0.1:{port}/fl", "password authentication failed"),
        ("postgresql://locked:secret%3A1@127.0.0.1:{port}/fl", "permission denied for database fl"),
        ("postgresql://fl@127.0.0.1:{port}/nowhere", 'database "nowhere" does not exist'),
    ],
    ids=["away", "password", "permission", "database"],
)
def test_a_server_that_does_not_let_us_in_is_said_in_one_line_without_passwords(
    postgres, broker, tmp_path, capsys, change, text
):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = change.format(closed=nobody.getsockname()[1], port=postgres.port)
        options = f"--bundle digits-wrn-10-1 --broker {broker.url} --run-dir {tmp_path}/run --database {url}"
        assert cli.main(["serve", *options.split()]) == 7
    output = capsys.readouterr()
    error = output.err.splitlines()[-1]
    assert "PostgreSQL at 127.0.0.1:" in error and text in error
    assert "wrong" not in output.err + output.out and "secret" not in output.err + output.out
    assert (
        not (tmp_path / "run" / "run.sqlite").exists() and place.database_place_of(tmp_path / "run") is None
    )


@pytest.mark.parametrize("url", ["postgresql://u:pw@h/x?nonsense=1", "postgresql://u:pw@[h/x"])
def test_a_url_that_is_none_is_refused_without_repeating_it(url):
    with pytest.raises(ConfigError, match=r"database.url: not a PostgreSQL URL") as refused:
        PostgresServer.parse(url)
    assert "pw" not in str(refused.value).replace("password", "")


def test_the_settings_name_their_key(tmp_path):
    def server(text, *flags):
        (tmp_path / "server.toml").write_text(text)
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        return command.server_config(
            parser.parse_args(["--config", str(tmp_path / "server.toml"), *flags])
        ).database

    (tmp_path / "pw").write_text("a b@c\n")
    section = server('[database]\nurl = "postgresql://fl:old@db/fl"\npassword_file = "pw"\n')
    parameters = dict(PostgresServer.parse(database_for(section)).parameters)
    assert parameters == {"user": "fl", "password": "a b@c", "host": "db", "dbname": "fl"}
    assert server("", "--database", "postgresql://db/fl").url == "postgresql://db/fl"
    with pytest.raises(ConfigError, match=r"database.url: expected postgresql://"):
        server('[database]\nurl = "mysql://db"\n')
    with pytest.raises(ConfigError, match="database.password_file needs database.url"):
        server('[database]\npassword_file = "pw"\n')
    with pytest.raises(ConfigError, match="database.uri: there is no such key"):
        server('[database]\nuri = "postgresql://db"\n')
    with pytest.raises(ConfigError, match="database.password_file: cannot read"):
        database_for(server('[database]\nurl = "postgresql://db"\npassword_file = "none"\n'))


def test_the_folder_remembers_the_server_and_never_a_password(postgres, opened, tmp_path, monkeypatch):
    postgres.sql("GRANT CREATE ON DATABASE fl TO locked")
    bare = f"postgresql://locked@127.0.0.1:{postgres.port}/fl"
    try:
        ask(opened(with_password(bare, "secret:1")), "a")
        for file in (tmp_path / "run").iterdir():
            assert b"secret" not in file.read_bytes()
        with pytest.raises(DatabaseError, match="no password supplied"):
            opened(reading=True)
        monkeypatch.setenv("PGPASSWORD", "secret:1")
        assert rows_of(opened(reading=True)) == [("a", 1)]
    finally:
        postgres.sql("DROP OWNED BY locked CASCADE", "fl")


def test_a_run_stays_where_it_was_begun(postgres, opened, tmp_path):
    opened(folder="plain").close()
    with pytest.raises(RunFolderError, match=r"keeps its run in run\.sqlite: leave the database out"):
        opened(postgres.url, "plain")
    opened(postgres.url).close()
    moved = f"postgresql://fl@localhost:{postgres.port}/fl"
    ask(opened(moved), "a")
    assert "host=localhost" in place.database_place_of(tmp_path / "run").server
    with pytest.raises(RunFolderError, match=r"there is no schema run_\w+, where this run is kept"):
        opened(f"postgresql://fl@127.0.0.1:{postgres.port}/postgres", copied(tmp_path, "there"))


def test_tables_of_another_version_are_refused_in_words(postgres, opened, tmp_path):
    database = opened(postgres.url)
    schema = place.database_place_of(tmp_path / "run").schema
    with database.commit() as db:
        db.execute("UPDATE about SET version = 99")
    database.close()
    with pytest.raises(RunFolderError, match=f"schema {schema} has version 99, this version reads"):
        opened()


@pytest.mark.parametrize("content", [b"", b"{}", b"rubbish", b'{"server": 1, "schema": "x"}'])
def test_a_damaged_word_on_where_a_run_is_begins_no_other(postgres, opened, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / place.PLACE_FILE).write_bytes(content)
    with pytest.raises(RunFolderError, match=r"cannot read .*database\.json"):
        opened(postgres.url)


def test_a_store_in_postgres_belongs_to_one_run(postgres, tmp_path):
    with closing(Store(tmp_path / "run", database=postgres.url)) as store:
        store.begin_run(MINE)
        store.begin_run(MINE)  # done again, as after a lost answer
        with pytest.raises(RunFolderError, match="belongs to a run already"):
            store.begin_run(Identity(b"{}", "other", bytes(32)))
        assert store.identity() == MINE


def test_standbys_that_may_lack_what_was_acknowledged_are_warned_of(postgres, tmp_path, caplog, eventually):
    def warned(name):
        caplog.clear()
        with closing(Store(tmp_path / name, database=postgres.url)):
            return "empty synchronous_standby_names" in caplog.text

    assert not warned("alone")
    with postgres.standby():
        assert warned("followed")
        postgres.sql("ALTER SYSTEM SET synchronous_standby_names = 'pg_receivewal'")
        postgres.sql("SELECT pg_reload_conf()")
        assert eventually(lambda: "pg_receivewal" in postgres.sql("SHOW synchronous_standby_names"))
        try:
            assert not warned("awaited")
        finally:
            postgres.sql("ALTER SYSTEM RESET synchronous_standby_names")
            postgres.sql("SELECT pg_reload_conf()")
