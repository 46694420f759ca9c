"""Stores the masked sums of rounds, and what is known against the devices whose updates spoil sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from pathlib import Path
from typing import Literal

import msgspec

from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Blob, Masks

from .database import Commit, Database, DatabaseRow

Fault = Literal["mask", "used", "sum", "named"]
"""What was wrong, and with what.

mask: a helper could not open the mask. used: the mask is in another set, through no fault of the device.
sum: the sum cannot be one of its devices' updates. named: the device that several such sums had in common.
"""
WINDOW = 20
"""Rounds in which sums that cannot be are compared."""
CASES = 3
"""Rounds with a mask that could not be opened after which a device is suspended."""
SUSPENDED_ROUNDS = 10
"""Rounds of the first suspension; each case after that adds as many."""

_LEAVE_OUT = """UPDATE contributions SET into_round = 0, body = NULL
WHERE into_round = ? AND device = ?"""
_FORGET_MASK = """DELETE FROM masks WHERE device = ?
AND round IN (SELECT round FROM contributions WHERE device = ? AND into_round = 0)"""
_ADD = "INSERT INTO mask_faults VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_EXPLAINED = """DELETE FROM mask_faults WHERE fault = 'sum'
AND sum IN (SELECT sum FROM mask_faults WHERE fault = 'sum' AND device = ?)"""


@dataclass(frozen=True)
class MaskFault:
    """A device and what is known against it in a round; `sum`: the sum that it was in, if that matters."""

    device: str
    fault: Fault
    why: str
    sum: bytes = b""


class MaskFaults:
    """The devices that were left out of the masked sums of a run. Raises as Database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def checks(self, number: int) -> tuple[tuple[str, ...], bool] | None:
        """The helpers that check the sums of a round, and whether all have; None before any was asked."""
        rows = self._db.rows("SELECT helpers, done FROM sum_checks WHERE into_round = ?", number)
        return (tuple(rows[0]["helpers"].split()), bool(rows[0]["done"])) if rows else None

    def begin_checks(self, number: int, helpers: Sequence[str]) -> None:
        """Stores which helpers check the sums of a round."""
        with self._db.commit() as db:
            sql = "INSERT INTO sum_checks VALUES (?, ?, 0) ON CONFLICT DO NOTHING"
            db.execute(sql, (number, " ".join(helpers)))

    def end_checks(self, number: int) -> None:
        """Stores that all sums of a round are checked: no device is left out any more."""
        with self._db.commit() as db:
            db.execute("UPDATE sum_checks SET done = 1 WHERE into_round = ?", (number,))

    def leave_out(self, number: int, faults: Sequence[MaskFault]) -> None:
        """Lets the contributions of devices to round `number` not count; durable on return."""
        with self._db.commit() as db:
            db.executemany(_LEAVE_OUT, [(number, fault.device) for fault in faults])
            db.executemany(_FORGET_MASK, [(fault.device, fault.device) for fault in faults])
            self.add(db, number, faults)

    def add(self, db: Commit, number: int, faults: Sequence[MaskFault]) -> None:
        """Adds faults of round `number`. What a device was named for counts against no other one."""
        db.executemany(_ADD, [(number, fault.device, fault.fault, fault.sum, fault.why) for fault in faults])
        db.executemany(_EXPLAINED, [(fault.device,) for fault in faults if fault.fault == "named"])

    def left_out(self, number: int) -> tuple[tuple[str, str], ...]:
        """The devices that are left out of round `number`, and why."""
        sql = "SELECT device, why FROM mask_faults WHERE into_round = ? AND fault <> 'sum' ORDER BY device"
        return tuple((row["device"], row["why"]) for row in self._db.rows(sql, number))

    def suspicions(self, number: int) -> Mapping[str, int]:
        """In how many sums that cannot be each device was, in the WINDOW rounds before round `number`."""
        sql = "SELECT device FROM mask_faults WHERE fault = 'sum' AND into_round BETWEEN ? AND ?"
        return Counter(row["device"] for row in self._db.rows(sql, number - WINDOW, number - 1))

    def suspension(self, device: str, number: int) -> str:
        """Why masked updates of a device are refused in round `number`; empty if they are accepted."""
        sql = """SELECT into_round, fault, why FROM mask_faults
        WHERE device = ? AND fault IN ('mask', 'named') ORDER BY into_round"""
        rows = self._db.rows(sql, device)
        cases = sum(CASES if row["fault"] == "named" else 1 for row in rows)
        if cases < CASES:
            return ""
        until = rows[-1]["into_round"] + SUSPENDED_ROUNDS * (cases - CASES + 1)
        if number > until:
            return ""
        numbers = ", ".join(str(row["into_round"]) for row in rows[-CASES:])
        return (
            f"{rows[-1]['why']} (in round {numbers}), so its updates are not taken before round {until + 1}: "
            "update the device, or join it anew"
        )


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
