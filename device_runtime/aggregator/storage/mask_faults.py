"""Stores which devices were left out of masked sums, and why; a run remembers it over restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .database import Commit, Database

Fault = Literal["mask", "used", "sum", "named"]
"""A mask that a helper could not open, one that is in another set (no fault of the device), a sum that cannot
be one of its devices' updates, and the device that several such sums had in common."""
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
