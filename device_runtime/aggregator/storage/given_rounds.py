"""Rounds of a site, whose bases and seeds come from the aggregator above it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.broker.wire.messages import Base, Step

FILE = "outside.msg"
"""File in the run folder: the round that was given last."""
SEEDS = 64
"""The number of earlier rounds whose seeds are kept: more than late contributions may be late."""
SITE_ROLLBACK_TEXT = (
    "this run is of a site: its base models come from the aggregator above, go back to another model there"
)


class GivenRound(msgspec.Struct, frozen=True, array_like=True):
    """Round `number` of this run as it was given: base, seed, and deadline in seconds.

    source: identifies the round to the code that gave it.
    steps: the zeroth-order steps from the base of the round given before to this base; empty if no steps lead
    to it.
    earlier: the seeds of rounds before it, filled in by `GivenRoundStore.keep`.
    rare: as in Offer.
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


class GivenRoundStore:
    """Stores the round that was given last, before it is offered. Raises RunFolderError."""

    def __init__(self, folder: Path) -> None:
        """Reads the round that an earlier process stored."""
        self._path = folder / FILE
        self.latest = self._read()

    def keep(self, given_round: GivenRound) -> None:
        """Stores a round, durable on return; a round that is given again is replaced."""
        given_round = msgspec.structs.replace(given_round, earlier=self._seeds(given_round.number))
        try:
            replace_file(self._path, msgspec.msgpack.encode(given_round))
        except OSError as error:
            raise RunFolderError(f"cannot write {self._path}: {error.strerror or error}") from None
        self.latest = given_round

    def round(self, number: int) -> GivenRound | None:
        """Round `number`, if it is the one that was given last."""
        return self.latest if self.latest and self.latest.number == number else None

    def seed(self, number: int) -> int:
        """The seed of a round. Raises KeyError for one that was not given, or too long ago."""
        return self._seeds(number + 1)[number]

    def _seeds(self, before: int) -> dict[int, int]:
        """The seeds of the latest SEEDS rounds before this one."""
        latest = self.latest
        seeds = {**latest.earlier, latest.number: latest.seed} if latest else {}
        numbers = sorted(number for number in seeds if number < before)
        return {number: seeds[number] for number in numbers[-SEEDS:]}

    def _read(self) -> GivenRound | None:
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=GivenRound)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(f"cannot read {self._path}: {error}") from None
