"""The zeroth-order steps that the rounds of a run have taken, in its database; Store writes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.messages import Step

from .database import Database


class StepHistory:
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


# FROM serving_history: Since when the served models of a run are out, and which of them was gone back to.

_GO_BACK = """INSERT INTO rollbacks VALUES (?, ?, ?, ?) ON CONFLICT (into_round) DO UPDATE
SET to_round = excluded.to_round, instead = excluded.instead, asked_s = excluded.asked_s"""


@dataclass(frozen=True)
class Rollback:
    """Going back to what round `to` made. `instead`: of what round `into`, open then, has collected; else it
    is what round `into` opens with.
    """

    into: int
    to: int
    instead: bool


class ServingHistory:
    """In an open database. Raises what Database does."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def publish(self, number: int, now: float) -> None:
        """The served model of a round is out since `now`, seconds since 1970; only the first time counts."""
        with self._db.commit() as db:
            db.execute("INSERT INTO versions VALUES (?, ?) ON CONFLICT DO NOTHING", (number, now))

    def published(self) -> dict[int, float]:
        """Since when the model of each round is out."""
        return {row[0]: row[1] for row in self._db.rows("SELECT round, published_s FROM versions")}

    def go_back(self, rollback: Rollback, now: float) -> None:
        """Going back is asked for, at `now`, seconds since 1970; the latest word on a round counts."""
        with self._db.commit() as db:
            db.execute(_GO_BACK, (rollback.into, rollback.to, int(rollback.instead), now))

    def rollbacks(self) -> tuple[Rollback, ...]:
        """All, by the round in which they took effect, or will."""
        rows = self._db.rows("SELECT into_round, to_round, instead FROM rollbacks ORDER BY into_round")
        return tuple(Rollback(row[0], row[1], bool(row[2])) for row in rows)

    def rollback_after(self, number: int) -> Rollback | None:
        """The latest that takes effect after round `number`."""
        later = [rollback for rollback in self.rollbacks() if rollback.into > number]
        return later[-1] if later else None

    def rollback_into(self, number: int, instead: bool) -> Rollback | None:
        """That of this round, if it takes effect so."""
        found = [one for one in self.rollbacks() if one.into == number and one.instead == instead]
        return found[0] if found else None
