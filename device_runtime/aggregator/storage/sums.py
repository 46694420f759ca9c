"""Stores how a run's updates are masked, the answers of mask helpers, and the sums that were opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from pathlib import Path

import msgspec

from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Blob, Masks

from .database import Commit, Database, DatabaseRow
from .mask_faults import MaskFaults

_MASKS = "SELECT masks FROM round_masks WHERE round = ?"
_ADD_MASKS = "INSERT INTO round_masks VALUES (?, ?) ON CONFLICT DO NOTHING"
_ANSWER = "INSERT INTO sum_answers VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FORGET_MASKS = """DELETE FROM masks WHERE EXISTS (SELECT 1 FROM contributions c
WHERE c.round = masks.round AND c.device = masks.device AND c.into_round = ?)"""


@dataclass(frozen=True)
class StoredAnswer:
    """A mask helper's answer for the sum `id`: a content, in `body` or a blob of `StoredSums.blobs`.

    refusal: why there is none; empty for an answer with a content.
    """

    id: bytes
    helper: str
    body: bytes = b""
    blob: Blob | None = None
    refusal: str = ""


@dataclass(frozen=True)
class SumRecord:
    """A sum of masked updates of one kind, made for one round.

    train_loss: nan where it is unknown. why: the reason that it was not opened; empty if it was.
    """

    id: bytes
    round: int
    kind: str
    devices: int
    num_examples: int
    train_loss: float = nan
    why: str = ""


class StoredSums:
    """The masked sums of a run. Raises as Database, and BlobError when the disk fails."""

    def __init__(self, db: Database, folder: Path) -> None:
        """`folder`: for large requests and answers; it is made when it is needed."""
        self._db, self._folder = db, folder
        self.faults = MaskFaults(db)

    @cached_property
    def blobs(self) -> Blobs:
        """Large requests and answers; only mask helpers may fetch them."""
        return Blobs(self._folder)

    def add_masks(self, db: Commit, number: int, masks: Masks) -> None:
        """Adds how the updates of a round are masked; it does not change after that."""
        db.execute(_ADD_MASKS, (number, msgspec.msgpack.encode(masks)))

    def masks(self, number: int) -> Masks | None:
        """How the updates of a round are masked; None if they are not, or the round is not open yet."""
        rows = self._db.rows(_MASKS, number)
        return msgspec.msgpack.decode(rows[0]["masks"], type=Masks) if rows else None

    def noise(self) -> dict[int, int]:
        """The noise multiplier, in thousandths, of every round that was opened with noise."""
        rows = self._db.rows("SELECT round, masks FROM round_masks ORDER BY round")
        noises = {row["round"]: msgspec.msgpack.decode(row["masks"], type=Masks).noise_milli for row in rows}
        return {number: noise for number, noise in noises.items() if noise}

    def keep(self, answer: StoredAnswer, number: int) -> None:
        """Stores an answer for round `number`; durable on return. Its blob, if any, must be in `blobs`."""
        blob = msgspec.msgpack.encode(answer.blob) if answer.blob else None
        with self._db.commit() as db:
            row = (answer.id, answer.helper, number, answer.body or None, blob, answer.refusal)
            db.execute(_ANSWER, row)

    def answers(self, number: int) -> dict[tuple[bytes, str], StoredAnswer]:
        """All answers for round `number`, by sum and helper."""
        rows = self._db.rows("SELECT * FROM sum_answers WHERE into_round = ?", number)
        return {(answer.id, answer.helper): answer for answer in map(_answer, rows)}

    def content(self, answer: StoredAnswer) -> bytes:
        """The sum of masks of an answer that is no refusal. Raises BlobError."""
        return self.blobs.get(answer.blob) if answer.blob else answer.body

    def add_records(self, db: Commit, number: int, records: Sequence[SumRecord]) -> None:
        """Adds the sums of a merged round, in place of those of an earlier attempt."""
        db.execute("DELETE FROM sums WHERE into_round = ?", (number,))
        rows = [
            (
                number,
                record.id,
                record.round,
                record.kind,
                record.devices,
                record.num_examples,
                None if isnan(record.train_loss) else record.train_loss,
                record.why,
            )
            for record in records
        ]
        db.executemany("INSERT INTO sums VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def records(self, number: int) -> tuple[SumRecord, ...]:
        """The sums of a merged round, by kind and round made for."""
        rows = self._db.rows("SELECT * FROM sums WHERE into_round = ? ORDER BY kind, round, id", number)
        return tuple(
            SumRecord(
                bytes(row["id"]),
                row["round"],
                row["kind"],
                row["devices"],
                row["num_examples"],
                nan if row["train_loss"] is None else row["train_loss"],
                row["why"],
            )
            for row in rows
        )

    def forget(self, db: Commit, number: int) -> None:
        """Deletes the masks and answers of a closed round: its contents are deleted too."""
        db.execute("DELETE FROM sum_answers WHERE into_round <= ?", (number,))
        db.execute("DELETE FROM sum_checks WHERE into_round <= ?", (number,))
        db.execute(_FORGET_MASKS, (number,))

    def prune(self) -> None:
        """Deletes requests and answers that no stored answer of an open round refers to."""
        if self._folder.exists():
            rows = self._db.rows("SELECT blob FROM sum_answers WHERE blob IS NOT NULL")
            self.blobs.prune(msgspec.msgpack.decode(row["blob"], type=Blob) for row in rows)


def _answer(row: DatabaseRow) -> StoredAnswer:
    blob = msgspec.msgpack.decode(row["blob"], type=Blob) if row["blob"] else None
    return StoredAnswer(bytes(row["id"]), row["helper"], bytes(row["body"] or b""), blob, row["refusal"])
