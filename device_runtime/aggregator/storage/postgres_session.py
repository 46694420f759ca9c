"""One connection to PostgreSQL for a run: how it is set, and that the run is ours while it lasts.

A run has a schema of its own, so that a database may hold several. Whoever owns the run holds an advisory
lock, which ends with the connection; `life` in the schema names the owner, so that one who comes back after
a lost connection knows whether another has had the run in the meantime.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from device_runtime.aggregator.errors import ConfigError, DatabaseError, RunFolderError

from .tables import POSTGRES, VERSION, wrong_version

log = logging.getLogger(__name__)

SECRETS = ("password", "sslpassword", "oauth_client_secret")
"""Of a connection's parameters: never shown, never written down."""
DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Of the connection, where the URL says nothing: a server that vanished is noticed in a minute."""
SETTINGS = {
    "synchronous_commit": "on",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "client_min_messages": "warning",
}
"""Of the session: a commit that has returned is on the server's disk, and an owner that vanished loses its
lock in a minute."""
LOCK_S = 10.0
"""Seconds that an owner which was just killed has to let go: the server may be at its last commit still."""
LOOK_S = 0.1
"""Seconds between two attempts at the lock."""
_STANDBYS = "SELECT count(*), current_setting('synchronous_standby_names') FROM pg_stat_replication"
_ABOUT = (
    "CREATE TABLE about (id BIGINT PRIMARY KEY CHECK (id = 1), version BIGINT NOT NULL, life TEXT NOT NULL)"
)

Connection = psycopg.Connection["Columns"]


class Columns(tuple[Any, ...]):
    """A row: its columns by place or by name."""

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
class Server:
    """Where PostgreSQL is: `parameters` for libpq. Its text holds no password."""

    parameters: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, url: str) -> Server:
        """`postgresql://user@host:5432/database`, or as libpq has it. Raises ConfigError without the URL."""
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error:
            raise ConfigError(
                "database.url: not a PostgreSQL URL: use postgresql://user@host:5432/database, with '/', "
                "'#', '?', '@', ':' in a password written as %2F, %23, %3F, %40, %3A"
            ) from None
        return cls(tuple(sorted((key, str(value)) for key, value in given.items() if value is not None)))

    @property
    def public(self) -> str:
        """As libpq has it, without what is secret."""
        return make_conninfo("", **{key: value for key, value in self.parameters if key not in SECRETS})

    def __str__(self) -> str:
        known = dict(self.parameters)
        where = ":".join(known[key] for key in ("host", "port") if key in known) or "this machine"
        return f"PostgreSQL at {where}" + (f", database {known['dbname']}" if "dbname" in known else "")


def with_password(url: str, password: str) -> str:
    """A URL as libpq has it, with a password in place of its own. Raises ConfigError."""
    return make_conninfo("", **{**dict(Server.parse(url).parameters), "password": password})


@dataclass(frozen=True)
class Claim:
    """What a process wants of a server: the run in `schema`, as `life`; an empty `life` only reads."""

    schema: str
    life: str


def claim(schema: str) -> Claim:
    """As a new owner."""
    return Claim(schema, secrets.token_hex(8))


def schema_for(name: str) -> str:
    """A name for a new run in a folder of this name, that no other run has."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40] or "run"
    return f"{plain if plain[0].isalpha() else f'run_{plain}'}_{secrets.token_hex(4)}"


def connect(server: Server, wanted: Claim) -> Connection:
    """A session in the schema. Raises psycopg.Error."""
    owning = {"target_session_attrs": "read-write"} if wanted.life else {}
    parameters: dict[str, Any] = {**DEFAULTS, **owning, **dict(server.parameters)}
    parameters |= {"application_name": f"device-runtime {wanted.life}".strip(), "client_encoding": "UTF8"}
    connection: Connection = psycopg.connect(autocommit=True, row_factory=_rows, **parameters)
    reading = {} if wanted.life else {"default_transaction_read_only": "on"}
    try:
        for key, value in {**SETTINGS, **reading, "search_path": wanted.schema}.items():
            connection.execute("SELECT set_config(%s, %s, false)", (key, value))
    except BaseException:
        connection.close()
        raise
    return connection


def begin(connection: Connection, wanted: Claim) -> None:
    """Make the run's schema, and own it. Raises psycopg.Error."""
    _lock(connection, wanted, clear=False)
    with connection.transaction():
        connection.execute(f'CREATE SCHEMA "{wanted.schema}"'.encode())
        connection.execute(_ABOUT)
        connection.execute(POSTGRES.encode())
        connection.execute("INSERT INTO about VALUES (1, %s, %s)", (VERSION, wanted.life))
    _warn(connection)


def take(connection: Connection, wanted: Claim) -> None:
    """Own a run that was begun. Raises psycopg.Error, RunFolderError when another owns it."""
    check(connection, wanted)
    _lock(connection, wanted, clear=False)
    with connection.transaction():
        connection.execute(POSTGRES.encode())
        connection.execute("UPDATE about SET life = %s", (wanted.life,))
    _warn(connection)


def take_again(connection: Connection, wanted: Claim) -> None:
    """Go on owning it after a lost connection. Raises psycopg.Error, DatabaseError if another had it."""
    try:
        _lock(connection, wanted, clear=True)
    except RunFolderError as error:
        raise DatabaseError(str(error)) from None
    row = connection.execute("SELECT life FROM about").fetchone()
    if row is None or row[0] != wanted.life:
        raise DatabaseError(f"another aggregator has had run {wanted.schema} since the connection was lost")


def check(connection: Connection, wanted: Claim) -> None:
    """Whether the schema is there, and of this version. Raises psycopg.Error, RunFolderError."""
    there = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (wanted.schema,)).fetchone()
    if there is None:
        raise RunFolderError(f"there is no schema {wanted.schema}, where this run is kept")
    row = connection.execute("SELECT version FROM about").fetchone()
    version = row[0] if row else "none"
    if version != VERSION:
        raise RunFolderError(f"schema {wanted.schema} has {wrong_version(version)}")


def _lock(connection: Connection, wanted: Claim, clear: bool) -> None:
    """`clear`: an earlier connection of ours may hold it still, cut off from us, and is ended."""
    key = int.from_bytes(
        hashlib.sha256(f"device-runtime {wanted.schema}".encode()).digest()[:8], "big", signed=True
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
    raise RunFolderError(f"another aggregator has run {wanted.schema} open: stop it first")


def _warn(connection: Connection) -> None:
    row = connection.execute("SHOW fsync").fetchone()
    if row and row[0] == "off":
        log.warning("PostgreSQL runs with fsync = off: a power cut there may lose what was acknowledged")
    row = connection.execute(_STANDBYS).fetchone()
    if row and row[0] and not row[1]:
        log.warning(
            "PostgreSQL has standbys and an empty synchronous_standby_names: if one of them takes over, "
            "contributions that were acknowledged may be lost"
        )
