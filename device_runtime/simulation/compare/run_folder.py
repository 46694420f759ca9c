"""The folder of one run: who it is, what it wrote, whether it was finished."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors.numpy import save

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.executors.job import Job
from device_runtime.simulation.records import Ask, RoundLine
from device_runtime.simulation.scenario import Scenario
from device_runtime.strategies.training.device_half import Contribution

from .going_on import Keeper, forget, stopped
from .lines import Lines, read

INFO, ROUNDS, ASKS, PROBES, SERVED, LOG = (
    "run.json", "rounds", "asks", "probes.jsonl", "served.safetensors", "log.txt",
)  # fmt: skip
KEPT = (f"{ROUNDS}.jsonl", f"{ROUNDS}.csv", f"{ASKS}.jsonl", f"{ASKS}.csv", PROBES)
"""What grows with the rounds."""


@dataclass(frozen=True, order=True)
class Name:
    """One run of a comparison: a policy and a seed."""

    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{self.policy}-{self.seed}"


class Info(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """run.json. `sha256` is of the scenario under the policy, and the seed; `seconds` of real time.

    `labels` names the classes; `params_sent` says how many float32 values an update of each kind has.
    """

    policy: str
    seed: int
    sha256: str
    executor: str = ""
    finished: bool = False
    seconds: float = 0.0
    labels: tuple[str, ...] = ()
    params_sent: dict[str, int] = {}
    versions: dict[str, str] = {}


def fingerprint(scenario: Scenario, seed: int) -> str:
    """Equal for runs that give the same bytes."""
    return hashlib.sha256(b"%s %d" % (scenario.json(), seed)).hexdigest()


class RunFiles:
    """A watch that writes rounds and asks into `folder`, which is made.

    A stopped run goes on from `checkpoint`; any other that was there goes. `keeper` saves checkpoints.
    """

    def __init__(self, folder: Path, sha256: str, clock: Callable[[], float] = time.monotonic) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        before = stopped(folder, sha256)
        for left in (INFO, SERVED) if before else (INFO, SERVED, PROBES):
            (folder / left).unlink(missing_ok=True)
        if before is None:
            forget(folder)
        self.checkpoint = before.checkpoint if before else None
        self.keeper = Keeper(folder, sha256, clock, before.mark.seconds if before else 0.0)
        self._folder = folder
        self._rounds = Lines(folder, ROUNDS, RoundLine, more=before is not None)
        self._asks = Lines(folder, ASKS, Ask, more=before is not None)

    def asked(self, ask: Ask) -> None:
        self._asks.add(ask)

    def trained(self, job: Job, made: Contribution) -> None:
        """The weights of single devices are not kept."""

    def closed(self, line: RoundLine) -> None:
        self._rounds.add(line)
        self._rounds.flush()
        self._asks.flush()
        self.keeper.save(KEPT)

    def finish(self, served: Tensors, info: Info) -> None:
        """The model, and last of all that this run is finished."""
        self.close()
        (self._folder / SERVED).write_bytes(save(dict(served)))
        written = self._folder / f"{INFO}.new"
        written.write_bytes(msgspec.json.format(msgspec.json.encode(info)) + b"\n")
        written.replace(self._folder / INFO)
        forget(self._folder)

    def close(self) -> None:
        """May be called twice."""
        self._rounds.close()
        self._asks.close()


def finished(folder: Path, sha256: str) -> bool:
    """Whether this very run is there, and whole."""
    info = _info(folder)
    return info is not None and info.finished and info.sha256 == sha256


def info_of(folder: Path) -> Info:
    """Raises SimulationError for a run that is not finished."""
    info = _info(folder)
    if info is None or not info.finished:
        raise SimulationError(f"{folder} holds no finished run")
    return info


def rounds_of(folder: Path) -> tuple[RoundLine, ...]:
    """Raises SimulationError."""
    return tuple(read(folder / f"{ROUNDS}.jsonl", RoundLine))


def _info(folder: Path) -> Info | None:
    try:
        return msgspec.json.decode((folder / INFO).read_bytes(), type=Info)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
