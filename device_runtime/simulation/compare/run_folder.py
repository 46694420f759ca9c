"""The folder of one run: its identity, its records as JSON lines, and its checkpoint."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import msgspec
from safetensors.numpy import save

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.executors.job import TrainingJob
from device_runtime.simulation.history import checkpoint
from device_runtime.simulation.history.checkpoint import Checkpoint, RunMark
from device_runtime.simulation.history.metrics import PaperCost
from device_runtime.simulation.history.records import AskRecord, DeviceEvaluation, SimulatedRound
from device_runtime.simulation.scenarios.scenario import Scenario
from device_runtime.strategies.interface.device_half import Update

INFO, ROUNDS, ASKS, SERVED, LOG = "run.json", "rounds.jsonl", "asks.jsonl", "served.safetensors", "log.txt"
DEVICES = "devices.jsonl"
"""The file of devices with test samples of their own."""
MODELS = "models"
"""The folder of the models of single rounds, where they are kept."""
GROWING = (ROUNDS, ASKS)
"""The files that grow with the rounds."""
OF_OLDER_VERSIONS = ("rounds.csv", "asks.csv")
"""Files that older versions wrote, which nothing continues."""


@dataclass(frozen=True, order=True)
class RunName:
    """One run of a comparison: a policy and a seed."""

    policy: str
    seed: int

    def __str__(self) -> str:
        return f"{self.policy}-{self.seed}"


class RunInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of run.json.

    `sha256` is the fingerprint of the scenario under the policy, with the seed; `seconds` are of real time.
    `labels` names the classes, if the loss is of classes; `params_sent` has the float32 values in an update
    of each kind, `paper_costs` what it costs by the papers' formulas.
    """

    policy: str
    seed: int
    sha256: str
    executor: str = ""
    finished: bool = False
    seconds: float = 0.0
    labels: tuple[str, ...] = ()
    params_sent: dict[str, int] = {}
    paper_costs: dict[str, PaperCost] = {}
    versions: dict[str, str] = {}


def fingerprint(scenario: Scenario, seed: int) -> str:
    """A hash of scenario and seed: equal for runs that give the same bytes."""
    return hashlib.sha256(b"%s %d" % (scenario.json(), seed)).hexdigest()


def lineage(scenario: Scenario, seed: int) -> str:
    """A hash of scenario and seed: equal for runs of which the longer begins as the shorter does.

    The number of rounds is left out, unless earlier rounds depend on it: by the noise that a budget allows
    each round, and by the evaluation of the last round where evaluations stop the run.
    """
    whole = msgspec.json.decode(scenario.json())
    masks = scenario.task.masks
    evaluates_last = scenario.task.stop_after and scenario.eval_every > 1
    if not evaluates_last and (masks is None or not masks.noisy):
        del whole["task"]["rounds"]
    return hashlib.sha256(b"%s %d" % (msgspec.json.encode(whole, order="sorted"), seed)).hexdigest()


class RunFiles:
    """An observer that writes rounds and asks into `folder`, which it makes.

    A stopped run, or a finished one that gets more rounds, resumes from `checkpoint`; files of another run
    are removed. `keeper` saves checkpoints.
    """

    def __init__(
        self, folder: Path, line: str, clock: Callable[[], float] = time.monotonic, keep_models: int = 0
    ) -> None:
        """`line` is the run's `lineage`. keep_models: every so many-th round's model is kept; 0: none is."""
        folder.mkdir(parents=True, exist_ok=True)
        before = stopped_run(folder, line)
        for left in (INFO, SERVED, DEVICES, *OF_OLDER_VERSIONS):
            (folder / left).unlink(missing_ok=True)
        if before is None:
            (folder / checkpoint.FILE).unlink(missing_ok=True)
            shutil.rmtree(folder / MODELS, ignore_errors=True)
        self.checkpoint, self._keep_models = before, keep_models
        seconds = before.mark.seconds if before and before.mark else 0.0
        self.keeper = CheckpointWriter(folder, line, clock, seconds)
        self._folder = folder
        self._rounds, self._asks = (RecordWriter(folder / name, more=before is not None) for name in GROWING)

    def asked(self, ask: AskRecord) -> None:
        self._asks.add(ask)

    def trained(self, job: TrainingJob, update: Update) -> None:
        """Ignored: the weights of single devices are not kept."""

    def closed(self, line: SimulatedRound) -> None:
        self._rounds.add(line)
        self._rounds.flush()
        self._asks.flush()
        if self._keep_models and line.round % self._keep_models == 0 and self.keeper.newest is not None:
            path = model_path(self._folder, line.round)
            path.parent.mkdir(exist_ok=True)
            replace_file(path, save(dict(self.keeper.newest.served)))
        self.keeper.save(GROWING)

    def evaluated(self, devices: Iterable[DeviceEvaluation]) -> None:
        """Writes a line for each device; no file where there are none."""
        rows = iter(devices)
        if (first := next(rows, None)) is None:
            return
        with RecordWriter(self._folder / DEVICES) as file:
            for row in (first, *rows):
                file.add(row)

    def finish(self, served: Tensors, info: RunInfo) -> None:
        """Writes the served model, and last of all that this run is finished.

        The checkpoint of the last round stays: the run can be given more rounds.
        """
        self.close()
        self.keeper.write()
        replace_file(self._folder / SERVED, save(dict(served)))
        replace_file(self._folder / INFO, msgspec.json.format(msgspec.json.encode(info)) + b"\n")

    def close(self) -> None:
        """May be called twice."""
        self._rounds.close()
        self._asks.close()


def model_path(folder: Path, number: int) -> Path:
    """The file of the model that round `number` serves, in a run's folder."""
    return folder / MODELS / f"round-{number:06d}.safetensors"


R = TypeVar("R")


def finished(folder: Path, sha256: str) -> bool:
    """Whether the folder holds this run (same fingerprint), finished."""
    info = _info(folder)
    return info is not None and info.finished and info.sha256 == sha256


def info_of(folder: Path) -> RunInfo:
    """The run.json of a finished run. Raises SimulationError for one that is not finished."""
    info = _info(folder)
    if info is None or not info.finished:
        raise SimulationError(f"{folder} holds no finished run")
    return info


def rounds_of(folder: Path) -> tuple[SimulatedRound, ...]:
    """The rounds of a run. Raises SimulationError."""
    return tuple(read(folder / ROUNDS, SimulatedRound))


def _info(folder: Path) -> RunInfo | None:
    try:
        return msgspec.json.decode((folder / INFO).read_bytes(), type=RunInfo)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


class RecordWriter(AbstractContextManager["RecordWriter"]):
    """Writes records as JSON lines, nan as null; with `more` it appends to an existing file.

    Records may not be on disk before `flush` or the end.
    """

    def __init__(self, path: Path, more: bool = False) -> None:
        self._lines = path.open("ab" if more else "wb")
        self._encoder = msgspec.json.Encoder()

    def add(self, record: object) -> None:
        self._lines.write(self._encoder.encode(record) + b"\n")

    def flush(self) -> None:
        """Hands the records to the operating system, so that this process may die without losing any."""
        self._lines.flush()

    def close(self) -> None:
        """May be called twice."""
        self._lines.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path, kind: type[R]) -> Iterator[R]:
    """Yields the records of a .jsonl file; null is nan where a number is expected.

    Skips an unfinished last line, which a killed run leaves. Raises SimulationError with file and line for
    any other damage, and for a missing file.
    """
    record = record_decoder(kind)
    number = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                number += 1
                if not line.endswith(b"\n"):
                    return
                yield record(line)
    except OSError as error:
        raise SimulationError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
        raise SimulationError(f"{path}, line {number}: not a line of this version ({error})") from None


def record_decoder(kind: type[R]) -> Callable[[bytes], R]:
    """A function that decodes one line of JSON; null is nan where a number is expected.

    It raises msgspec.MsgspecError and TypeError.
    """
    floats = {field.name for field in fields(kind) if field.type == "float"}  # type: ignore[arg-type]
    decoder = msgspec.json.Decoder(dict[str, Any])

    def record(line: bytes) -> R:
        values = decoder.decode(line)
        for name, value in values.items():
            if value is None and name in floats:
                values[name] = nan
            elif isinstance(value, list):
                values[name] = tuple(nan if item is None else item for item in value)
        return kind(**values)

    return record


EVERY_S = 10.0
"""Seconds of real time between two checkpoints.

A resumed run trains again at most this much, and one round.
"""


def stopped_run(folder: Path, line: str) -> Checkpoint | None:
    """The checkpoint that a run of this `lineage` left when it was stopped; None if it cannot be used.

    It cannot be used if it is missing, damaged or of another run. Else the run's files are cut to the sizes
    that they had at the checkpoint.
    """
    try:
        left = checkpoint.load(folder)
    except SimulationError:
        return None
    if left is None or left.mark is None or left.mark.line != line:
        return None
    sizes = {name: size for name, size in left.mark.sizes.items() if name in GROWING}
    if any(_size(folder / name) < size for name, size in sizes.items()):
        return None
    for name, size in sizes.items():
        os.truncate(folder / name, size)
    return left


class CheckpointWriter:
    """Saves the `newest` checkpoint every EVERY_S seconds, when the files of its round are written."""

    def __init__(self, folder: Path, line: str, clock: Callable[[], float], before_s: float = 0.0) -> None:
        """`line`: the run's `lineage`. `before_s`: the real seconds that it took before it was stopped."""
        self._folder, self._line, self._clock = folder, line, clock
        self._began = clock() - before_s
        self._saved = clock()
        self.newest: Checkpoint | None = None
        self._sizes: dict[str, int] = {}

    @property
    def seconds(self) -> float:
        """The real seconds of the run, including those before it was stopped."""
        return self._clock() - self._began

    def take(self, newest: Checkpoint) -> None:
        """Takes the checkpoint that the simulation gives after each round."""
        self.newest = newest

    def save(self, names: tuple[str, ...]) -> None:
        """Saves the newest checkpoint if it is time; the named files must end with its round."""
        self._sizes = {name: max(0, _size(self._folder / name)) for name in names}
        if self._clock() - self._saved >= EVERY_S:
            self.write()

    def write(self) -> None:
        """Saves the newest checkpoint, if one was taken."""
        if self.newest is not None:
            self._saved = self._clock()
            mark = RunMark(self._line, self.seconds, self._sizes)
            checkpoint.save(replace(self.newest, mark=mark), self._folder)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
