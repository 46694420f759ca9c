"""The history of a run in its database: zeroth-order steps, publication times, and rollbacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.messages import Step

from .database import Database

_GO_BACK = """INSERT INTO rollbacks VALUES (?, ?, ?, ?) ON CONFLICT (into_round) DO UPDATE
SET to_round = excluded.to_round, instead = excluded.instead, asked_s = excluded.asked_s"""


class StepHistory:
    """The zeroth-order steps that the rounds of a run took; Store writes them. Raises as Database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def last(self, number: int, count: int) -> tuple[Step, ...]:
        """The last `count` steps before round `number`. Raises RunFolderError where some are missing."""
        rows = self._db.rows(
            "SELECT step FROM steps WHERE round < ? ORDER BY round DESC, position DESC LIMIT ?", number, count
        )
        if len(rows) != count:
            raise RunFolderError(f"run folder {self._db.folder} lacks steps: has {len(rows)}, needs {count}")
        return tuple(msgspec.msgpack.decode(row["step"], type=Step) for row in reversed(rows))

    def has(self, number: int, count: int) -> bool:
        """Whether the last `count` steps before round `number` are kept."""
        return self._begun(number, count) > 0

    def forget(self, needed: Iterable[tuple[int, int]]) -> None:
        """Deletes the steps of all rounds before the first needed one.

        `needed`: pairs (number, count), each for the last `count` steps before round `number`.
        """
        first = min(self._begun(number, count) for number, count in needed)
        with self._db.commit() as db:
            db.execute("DELETE FROM steps WHERE round < ?", (first,))

    def _begun(self, number: int, count: int) -> int:
        """The round of the first of the last `count` steps before round `number`; 0 where it is not kept."""
        if not count:
            return number
        sql = "SELECT round FROM steps WHERE round < ? ORDER BY round DESC, position DESC LIMIT 1 OFFSET ?"
        rows = self._db.rows(sql, number, count - 1)
        return int(rows[0]["round"]) if rows else 0


@dataclass(frozen=True)
class Rollback:
    """A return to the models that round `to` made.

    `instead`: they replace the result of round `into`, which was open; else round `into` opens with them.
    """

    into: int
    to: int
    instead: bool


class ServingHistory:
    """When each served model was published, and which rollbacks there were. Raises as Database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def publish(self, number: int, now: float) -> None:
        """Records the publication time of a round's model, in seconds since 1970; only the first counts."""
        with self._db.commit() as db:
            db.execute("INSERT INTO versions VALUES (?, ?) ON CONFLICT DO NOTHING", (number, now))

    def go_back(self, rollback: Rollback, now: float) -> None:
        """Records a rollback at `now` (seconds since 1970); replaces an earlier one into the same round."""
        with self._db.commit() as db:
            db.execute(_GO_BACK, (rollback.into, rollback.to, int(rollback.instead), now))

    def rollbacks(self) -> tuple[Rollback, ...]:
        """All rollbacks, ordered by the round in which they took or will take effect."""
        rows = self._db.rows("SELECT into_round, to_round, instead FROM rollbacks ORDER BY into_round")
        return tuple(Rollback(row[0], row[1], bool(row[2])) for row in rows)

    def rollback_after(self, number: int) -> Rollback | None:
        """The last rollback that takes effect after round `number`."""
        later = [rollback for rollback in self.rollbacks() if rollback.into > number]
        return later[-1] if later else None

    def rollback_into(self, number: int, instead: bool) -> Rollback | None:
        """The rollback into round `number`, if there is one with this `instead`."""
        matches = [back for back in self.rollbacks() if back.into == number and back.instead == instead]
        return matches[0] if matches else None
