"""A run in PostgreSQL.

After a lost connection it reconnects for up to PATIENCE_S seconds and repeats the interrupted work.

A run has a schema of its own, so that a database may hold several. The process that owns the run holds an
advisory lock, which ends with the connection. `life` in the schema names the owner: after a lost connection
it tells the owner whether another process has had the run in the meantime.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from device_runtime.aggregator.errors import AggregatorError, ConfigError, DatabaseError, RunFolderError
from device_runtime.aggregator.views.text import printable

from . import tables
from .tables import POSTGRES, VERSION, DatabasePlace, Statement, wrong_version

log = logging.getLogger(__name__)

SECRETS = ("password", "sslpassword", "oauth_client_secret")
"""Connection parameters that are never shown and never written to a file."""
DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Defaults of connection parameters, in s (tcp_user_timeout in ms): a lost server is noticed in a minute."""
SETTINGS = {
    "synchronous_commit": "on",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "client_min_messages": "warning",
}
"""Settings of the session.

A commit that has returned is on the server's disk, and an owner that vanished loses its lock in a minute.
"""
LOCK_S = 10.0
"""Seconds to wait for the lock: the server may still commit for an owner that was just killed."""
LOOK_S = 0.1
"""Seconds between two attempts at the lock."""
PATIENCE_S = 60.0
"""Seconds that a server may be away."""
WAITS_S = (0.2, 5.0)
"""Seconds between attempts to reconnect: at first, and at most."""
_STANDBYS = "SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_replication"
_ABOUT = (
    "CREATE TABLE about (id BIGINT PRIMARY KEY CHECK (id = 1), version BIGINT NOT NULL, life TEXT NOT NULL)"
)

Connection = psycopg.Connection["Columns"]


class Columns(tuple[Any, ...]):
    """A row whose columns are found by position or by name."""

    __slots__ = ()
    places: dict[str, int] = {}  # noqa: RUF012 - of each subclass

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.places[key] if isinstance(key, str) else key)


@lru_cache(maxsize=64)
def _columns(names: tuple[str, ...]) -> type[Columns]:
    return type("Row", (Columns,), {"__slots__": (), "places": {name: i for i, name in enumerate(names)}})


def _rows(cursor: psycopg.Cursor[Any]) -> Callable[[Sequence[Any]], Columns]:
    return _columns(tuple(column.name for column in cursor.description or ()))


@dataclass(frozen=True)
class PostgresServer:
    """Connection `parameters` for libpq. Its str() holds no password."""

    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, url: str) -> PostgresServer:
        """Parses `postgresql://user@host:5432/database` or another form that libpq takes.

        Raises ConfigError, whose text does not contain the URL.
        """
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.Error:
            raise ConfigError(
                "database.url: not a PostgreSQL URL: use postgresql://user@host:5432/database, with '/', "
                "'#', '?', '@', ':' in a password written as %2F, %23, %3F, %40, %3A"
            ) from None
        return cls(tuple(sorted((key, str(value)) for key, value in parameters.items() if value is not None)))

    @property
    def public(self) -> str:
        """The connection string for libpq, without SECRETS."""
        return make_conninfo("", **{key: value for key, value in self.parameters if key not in SECRETS})

    def __str__(self) -> str:
        fields = dict(self.parameters)
        where = ":".join(fields[key] for key in ("host", "port") if key in fields) or "this machine"
        return f"PostgreSQL at {where}" + (f", database {fields['dbname']}" if "dbname" in fields else "")


def with_password(url: str, password: str) -> str:
    """The connection string of a URL for libpq, with this password. Raises ConfigError."""
    return make_conninfo("", **{**dict(PostgresServer.parse(url).parameters), "password": password})


@dataclass(frozen=True)
class RunClaim:
    """The run in `schema`, claimed under the owner's name `life`; an empty `life` only reads."""

    schema: str
    life: str


def claim(schema: str) -> RunClaim:
    """A claim with the name of a new owner."""
    return RunClaim(schema, secrets.token_hex(8))


def schema_for(name: str) -> str:
    """A unique schema name for a new run in a folder of this name."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40] or "run"
    return f"{plain if plain[0].isalpha() else f'run_{plain}'}_{secrets.token_hex(4)}"


def connect(server: PostgresServer, run: RunClaim) -> Connection:
    """Opens a session in the schema. Raises psycopg.Error."""
    owning = {"target_session_attrs": "read-write"} if run.life else {}
    parameters: dict[str, Any] = {**DEFAULTS, **owning, **dict(server.parameters)}
    parameters |= {"application_name": f"device-runtime {run.life}".strip(), "client_encoding": "UTF8"}
    connection: Connection = psycopg.connect(autocommit=True, row_factory=_rows, **parameters)
    reading = {} if run.life else {"default_transaction_read_only": "on"}
    try:
        for key, value in {**SETTINGS, **reading, "search_path": run.schema}.items():
            connection.execute("SELECT set_config(%s, %s, false)", (key, value))
    except BaseException:
        connection.close()
        raise
    return connection


def create_run(connection: Connection, run: RunClaim) -> None:
    """Creates the run's schema and owns it. Raises psycopg.Error, RunFolderError."""
    _lock(connection, run, clear=False)
    with connection.transaction():
        connection.execute(f'CREATE SCHEMA "{run.schema}"'.encode())
        connection.execute(_ABOUT)
        connection.execute(POSTGRES.encode())
        connection.execute("INSERT INTO about VALUES (1, %s, %s)", (VERSION, run.life))
    _warn(connection)


def take_ownership(connection: Connection, run: RunClaim) -> None:
    """Takes ownership of an existing run. Raises psycopg.Error, RunFolderError if another process owns it."""
    check_schema(connection, run)
    _lock(connection, run, clear=False)
    with connection.transaction():
        connection.execute(POSTGRES.encode())
        connection.execute("UPDATE about SET life = %s", (run.life,))
    _warn(connection)


def take_ownership_again(connection: Connection, run: RunClaim) -> None:
    """Takes ownership again after a lost connection.

    Raises psycopg.Error, DatabaseError if another process owns or has owned the run.
    """
    try:
        _lock(connection, run, clear=True)
    except RunFolderError as error:
        raise DatabaseError(str(error)) from None
    row = connection.execute("SELECT life FROM about").fetchone()
    if row is None or row[0] != run.life:
        raise DatabaseError(f"another aggregator has had run {run.schema} since the connection was lost")


def check_schema(connection: Connection, run: RunClaim) -> None:
    """Checks that the schema exists and has this version. Raises psycopg.Error, RunFolderError."""
    schema = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (run.schema,)).fetchone()
    if schema is None:
        raise RunFolderError(f"there is no schema {run.schema}, where this run is kept")
    row = connection.execute("SELECT version FROM about").fetchone()
    version = row[0] if row else "none"
    if version != VERSION:
        raise RunFolderError(f"schema {run.schema} has {wrong_version(version)}")


def _lock(connection: Connection, run: RunClaim, clear: bool) -> None:
    """Takes the advisory lock of the run. Raises psycopg.Error, RunFolderError.

    `clear`: ends earlier connections of this process, which may be cut off and still hold the lock.
    """
    key = int.from_bytes(
        hashlib.sha256(f"device-runtime {run.schema}".encode()).digest()[:8], "big", signed=True
    )
    for _ in range(int(LOCK_S / LOOK_S)):
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone()
        if row and row[0]:
            return
        if clear:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
            )
        connection.execute("SELECT pg_sleep(%s)", (LOOK_S,))
    raise RunFolderError(f"another aggregator has run {run.schema} open: stop it first")


def _warn(connection: Connection) -> None:
    """Warns of server settings with which a commit may be lost."""
    row = connection.execute("SHOW fsync").fetchone()
    if row and row[0] == "off":
        log.warning("PostgreSQL runs with fsync = off: a power cut there may lose what was acknowledged")
    row = connection.execute(_STANDBYS).fetchone()
    if row and row[0] and not row[1]:
        log.warning(
            "PostgreSQL has standbys and an empty synchronous_standby_names: if one of them takes over, "
            "contributions that were acknowledged may be lost"
        )


T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """How long to wait for a server that is away, in seconds, and the clock to use."""

    most_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Postgres:
    """An open run; implements `database.Backend`. Once it has raised DatabaseError, every call does."""

    def __init__(self, folder: Path, url: str, reading: bool, waiting: Waiting | None = None) -> None:
        """`url` empty: as stored in the folder. Raises as Database, and ConfigError for a bad URL."""
        self._waiting = waiting or Waiting()
        self._over = ""
        self._connection: Connection | None = None
        place = tables.database_place_of(folder)
        if place is None and (reading or not url):
            raise RunFolderError(f"{folder} is no run folder: nothing was begun there")
        self._server = PostgresServer.parse(url or (place.server if place else ""))
        self._claim = self._opened(folder, place, reading)

    def close(self) -> None:
        if self._connection:
            self._connection.close()

    def apply(self, statements: Sequence[Statement]) -> None:
        def work(connection: Connection) -> None:
            with connection.transaction(), connection.cursor() as cursor:
                for sql, values in statements:
                    cursor.executemany(_translated(sql), values)

        self._do(work)

    def rows(self, sql: str, values: Sequence[object]) -> list[Columns]:
        def work(connection: Connection) -> list[Columns]:
            return connection.execute(_translated(sql), values).fetchall()

        return self._do(work)

    def _opened(self, folder: Path, place: DatabasePlace | None, reading: bool) -> RunClaim:
        schema = place.schema if place else schema_for(folder.resolve().name)
        run = RunClaim(schema, "") if reading else claim(schema)
        try:
            connection = self._connection = connect(self._server, run)
            if reading:
                check_schema(connection, run)
            elif place:
                take_ownership(connection, run)
            else:
                create_run(connection, run)
            now = DatabasePlace(self._server.public, schema)
            if not reading and now != place:
                tables.store_database_place(folder, now)
        except psycopg.Error as error:
            self.close()
            raise DatabaseError(f"{self._server}: {_said(error)}") from None
        except AggregatorError as error:
            self.close()
            raise type(error)(f"run folder {folder}, {self._server}: {error}") from None
        return run

    def _do(self, work: Callable[[Connection], T]) -> T:
        """Does `work`, again and again while the server is away. Rounds stop meanwhile; nothing is lost."""
        waiting, since, wait_s = self._waiting, None, WAITS_S[0]
        while True:
            if self._over:
                raise DatabaseError(self._over)
            try:
                result = work(self._connected())
            except psycopg.Error as error:
                if self._connection is not None and not self._connection.closed:
                    raise RunFolderError(f"{self._server}: {_said(error)}") from None
                self._connection = None
                now = waiting.clock()
                if since is None:
                    since = now
                    log.warning(
                        "%s is lost, trying again for %g s: %s", self._server, waiting.most_s, _said(error)
                    )
                if now - since >= waiting.most_s:
                    self._over = f"{self._server} is away for {waiting.most_s:g} s: {_said(error)}"
                else:
                    waiting.sleep(wait_s)
                    wait_s = min(2 * wait_s, WAITS_S[1])
                continue
            if since is not None:
                log.warning("%s is back", self._server)
            return result

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = connect(self._server, self._claim)
            try:
                if self._claim.life:
                    take_ownership_again(connection, self._claim)
            except DatabaseError as error:
                self._over = f"{self._server}: {error}"
                connection.close()
                raise DatabaseError(self._over) from None
            except psycopg.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection


def _translated(sql: str) -> bytes:
    """The SQL for psycopg; bytes, which psycopg takes as a query without checks of their type."""
    return sql.replace("?", "%s").encode()


def _said(error: psycopg.Error) -> str:
    return printable(str(error)) or type(error).__name__
