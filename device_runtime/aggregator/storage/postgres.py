"""A run in PostgreSQL. A lost connection is sought for PATIENCE_S, and what was under way is done again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psycopg

from device_runtime.aggregator.errors import AggregatorError, DatabaseError, RunFolderError
from device_runtime.aggregator.views.text import printable

from . import database_place as place
from . import postgres_session as session
from .database_place import Place
from .postgres_session import Claim, Columns, Connection, Server
from .tables import Statement

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
"""Seconds that a server may be away."""
WAITS_S = (0.2, 5.0)
"""Seconds between attempts: at first, and at most."""

T = TypeVar("T")


@dataclass(frozen=True)
class Waiting:
    """How long a server is waited for, and by which clock, in seconds."""

    most_s: float = PATIENCE_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Postgres:
    """An open run, as `database.Backend`. Once it has raised DatabaseError it raises it for ever."""

    def __init__(self, folder: Path, url: str, reading: bool, waiting: Waiting | None = None) -> None:
        """`url` empty: where the folder says. Raises what Database does, and ConfigError for a bad URL."""
        self._waiting = waiting or Waiting()
        self._over = ""
        self._connection: Connection | None = None
        known = place.of(folder)
        if known is None and (reading or not url):
            raise RunFolderError(f"{folder} is no run folder: nothing was begun there")
        self._server = Server.parse(url or (known.server if known else ""))
        self._claim = self._opened(folder, known, reading)

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

    def _opened(self, folder: Path, known: Place | None, reading: bool) -> Claim:
        schema = known.schema if known else session.schema_for(folder.resolve().name)
        wanted = Claim(schema, "") if reading else session.claim(schema)
        try:
            connection = self._connection = session.connect(self._server, wanted)
            if reading:
                session.check(connection, wanted)
            elif known:
                session.take(connection, wanted)
            else:
                session.begin(connection, wanted)
            now = Place(self._server.public, schema)
            if not reading and now != known:
                place.keep(folder, now)
        except psycopg.Error as error:
            self.close()
            raise DatabaseError(f"{self._server}: {_said(error)}") from None
        except AggregatorError as error:
            self.close()
            raise type(error)(f"run folder {folder}, {self._server}: {error}") from None
        return wanted

    def _do(self, work: Callable[[Connection], T]) -> T:
        """Once, or again while the server is away. Whoever waits holds up the rounds, and loses nothing."""
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
            connection = session.connect(self._server, self._claim)
            try:
                if self._claim.life:
                    session.take_again(connection, self._claim)
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
    """Bytes are a query that psycopg takes as it is."""
    return sql.replace("?", "%s").encode()


def _said(error: psycopg.Error) -> str:
    return printable(str(error)) or type(error).__name__
