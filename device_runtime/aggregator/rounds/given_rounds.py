"""Rounds that are given from outside: an edge's, whose bases and seeds come from the aggregator above it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.broker.wire.messages import Base, Step
from device_runtime.broker.wire.partial_blob import replace_file

FILE = "outside.msg"
"""In the run folder: the round that was given last."""
SEEDS = 64
"""Of the rounds before it that are kept: more than late contributions are counted for."""
ITS_ROUNDS = (
    "this run is of an edge: what its rounds begin with comes from the aggregator above, go back to another "
    "model there"
)


class GivenRound(msgspec.Struct, frozen=True, array_like=True):
    """Round `number` of this run: what it distributes, its seed, and how many seconds it has.

    `source` is whose round it is, in the words of whoever gave it. `steps` lead to its base from that of the
    round given before, where both are on one line. `earlier` are the seeds of rounds before it; `Outside`
    knows them. `rare` as in Offer.
    """

    number: int
    seed: int
    deadline_s: float
    base: Base
    carried: CarriedBlobs
    source: bytes
    steps: tuple[Step, ...] = ()
    earlier: dict[int, int] = {}
    rare: tuple[int, ...] = ()


class Outside:
    """The round that was given last, on the disk before it is offered. Raises RunFolderError."""

    def __init__(self, folder: Path) -> None:
        """Reads what an earlier life was given."""
        self._path = folder / FILE
        self.latest = self._read()

    def keep(self, given: GivenRound) -> None:
        """It is durable when this returns; given again, it is replaced."""
        given = msgspec.structs.replace(given, earlier=self._seeds(given.number))
        try:
            replace_file(self._path, msgspec.msgpack.encode(given))
        except OSError as error:
            raise RunFolderError(f"cannot write {self._path}: {error.strerror or error}") from None
        self.latest = given

    def round(self, number: int) -> GivenRound | None:
        """Of this number, if it is the one that was given last."""
        return self.latest if self.latest and self.latest.number == number else None

    def seed(self, number: int) -> int:
        """Of this round. Raises KeyError for one that was not given, or too long ago."""
        return self._seeds(number + 1)[number]

    def _seeds(self, before: int) -> dict[int, int]:
        """Of the latest rounds before this one."""
        latest = self.latest
        known = {**latest.earlier, latest.number: latest.seed} if latest else {}
        numbers = sorted(number for number in known if number < before)
        return {number: known[number] for number in numbers[-SEEDS:]}

    def _read(self) -> GivenRound | None:
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=GivenRound)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise RunFolderError(f"cannot read {self._path}: {error}") from None
