"""How a run that was stopped goes on: what was learnt, and how long its files were then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from device_runtime.simulation import checkpoint
from device_runtime.simulation.checkpoint import Checkpoint
from device_runtime.simulation.errors import SimulationError

MARK = "going-on.json"
EVERY_S = 10.0
"""Seconds of real time between two checkpoints: as much is trained again at most, and one round."""


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Beside a checkpoint: of which run it is, after which round and how many seconds; bytes of each file."""

    sha256: str
    round: int
    seconds: float
    sizes: dict[str, int]


@dataclass(frozen=True)
class Stopped:
    """Where a run goes on."""

    checkpoint: Checkpoint
    mark: Mark


def stopped(folder: Path, sha256: str) -> Stopped | None:
    """What an earlier life of this very run left, if it fits together; what cannot be read is nothing.

    The files of the run are cut to what they were at the checkpoint.
    """
    try:
        mark = msgspec.json.decode((folder / MARK).read_bytes(), type=Mark)
        left = checkpoint.load(folder)
    except (OSError, msgspec.MsgspecError, SimulationError):
        return None
    whole = all(_size(folder / name) >= size for name, size in mark.sizes.items())
    if left is None or (mark.sha256, mark.round) != (sha256, left.round) or not whole:
        return None
    for name, size in mark.sizes.items():
        with (folder / name).open("r+b") as file:
            file.truncate(size)
    return Stopped(left, mark)


def forget(folder: Path) -> None:
    """The run is finished, or begins again."""
    for name in (MARK, checkpoint.FILE):
        (folder / name).unlink(missing_ok=True)


class Keeper:
    """Saves the newest checkpoint now and then, when the files of its round are written."""

    def __init__(self, folder: Path, sha256: str, clock: Callable[[], float], before_s: float = 0.0) -> None:
        """`before_s`: seconds of real time that earlier lives took."""
        self._folder, self._sha256, self._clock = folder, sha256, clock
        self._began = clock() - before_s
        self._saved = clock()
        self._newest: Checkpoint | None = None

    @property
    def seconds(self) -> float:
        """Of real time, those of earlier lives with them."""
        return self._clock() - self._began

    def take(self, newest: Checkpoint) -> None:
        """What the simulation gives after each round."""
        self._newest = newest

    def save(self, names: tuple[str, ...]) -> None:
        """If it is time: the files of these names hold the newest checkpoint's round, and no more."""
        if self._newest is None or self._clock() - self._saved < EVERY_S:
            return
        self._saved = self._clock()
        forget(self._folder)
        checkpoint.save(self._newest, self._folder)
        sizes = {name: _size(self._folder / name) for name in names if (self._folder / name).exists()}
        mark = Mark(self._sha256, self._newest.round, self.seconds, sizes)
        (self._folder / MARK).write_bytes(msgspec.json.encode(mark))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
