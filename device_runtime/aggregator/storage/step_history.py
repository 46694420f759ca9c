"""The zeroth-order steps that the rounds of a run have taken, in its database; Store writes them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.messages import Step

from .database import Database


class Taken:
    """In an open database. Raises what Database does."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def last(self, number: int, count: int) -> tuple[Step, ...]:
        """The last so many steps that were taken before round `number`."""
        rows = self._db.rows(
            "SELECT step FROM steps WHERE round < ? ORDER BY round DESC, position DESC LIMIT ?", number, count
        )
        if len(rows) != count:
            raise RunFolderError(f"run folder {self._db.folder} lacks steps: has {len(rows)}, needs {count}")
        return tuple(msgspec.msgpack.decode(row["step"], type=Step) for row in reversed(rows))

    def has(self, number: int, count: int) -> bool:
        """Whether the last so many that were taken before round `number` are kept."""
        return self._begun(number, count) > 0

    def forget(self, needed: Iterable[tuple[int, int]]) -> None:
        """All that were taken in rounds before those of steps which are needed: each time the last so many
        that were taken before a round (number, count).
        """
        first = min(self._begun(number, count) for number, count in needed)
        with self._db.commit() as db:
            db.execute("DELETE FROM steps WHERE round < ?", (first,))

    def _begun(self, number: int, count: int) -> int:
        """The round in which the first of the last so many steps before round `number` was taken; 0 where
        those are not kept.
        """
        if not count:
            return number
        sql = "SELECT round FROM steps WHERE round < ? ORDER BY round DESC, position DESC LIMIT 1 OFFSET ?"
        rows = self._db.rows(sql, number, count - 1)
        return int(rows[0]["round"]) if rows else 0
