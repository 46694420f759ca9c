"""Keeps finished runs of tables in the repository: one small compressed file for each.

A file has JSON lines: `KeptHead`, then the rounds. Floats have 6 significant digits. The asks and the model
are not kept.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from math import isnan
from pathlib import Path

import msgspec

from device_runtime.simulation.compare.figures import FinishedRun, read_run
from device_runtime.simulation.compare.run_folder import INFO, RunInfo, RunName, record_decoder
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.history import checkpoint
from device_runtime.simulation.history.metrics import AskCounts, BusyDevice
from device_runtime.simulation.history.records import SimulatedRound

FOLDER = Path(__file__).with_name("kept-runs")
"""The folder of kept runs, of all tables."""
DIGITS = 6
COMMITS = "commits.txt"
"""A file in the folder of a run: the commits of the code that ran it, a line each."""


class KeptAsks(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`AskCounts` as JSON: outcomes are (group, outcome, asks), busy is (group, asks, seconds) by device.

    What only notes below a report tell is not kept: reasons, stragglers, and work that no round counts.
    """

    asks: int
    counted: dict[str, int]
    outcomes: tuple[tuple[str, str, int], ...]
    kinds: dict[str, int]
    busy: dict[str, tuple[str, int, float]]
    samples: dict[str, int]
    first_down: int

    @classmethod
    def of(cls, counts: AskCounts) -> KeptAsks:
        return cls(
            asks=counts.asks,
            counted=dict(counts.counted),
            outcomes=tuple((group, outcome, number) for (group, outcome), number in counts.outcomes.items()),
            kinds=dict(counts.kinds),
            busy={name: (each.group, each.asks, each.seconds) for name, each in counts.busy.items()},
            samples=dict(counts.samples),
            first_down=counts.first_down,
        )

    def counts(self) -> AskCounts:
        return AskCounts(
            self.asks,
            self.counted,
            {(group, outcome): number for group, outcome, number in self.outcomes},
            self.kinds,
            {name: BusyDevice(*each) for name, each in self.busy.items()},
            self.samples,
            self.first_down,
        )


class KeptHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first line of a file. `info.sha256` is the run's key, which is the same on every machine."""

    info: RunInfo
    commits: tuple[str, ...]
    date: str
    asks: KeptAsks


@dataclass(frozen=True)
class StampedRun:
    """A finished run, the commits of the code that ran it (() is unknown) and the date of its end, UTC."""

    run: FinishedRun
    commits: tuple[str, ...] = ()
    date: str = ""


def place(folder: Path, name: RunName, key: str) -> Path:
    """The file of the run with this key."""
    return folder / f"{name}-{key[:10]}.jsonl.gz"


def of_folder(folder: Path, name: RunName) -> StampedRun:
    """The finished run in this folder. Raises SimulationError."""
    ended = datetime.fromtimestamp((folder / INFO).stat().st_mtime, timezone.utc)
    return StampedRun(read_run(folder, name, number=0), commits_of(folder), ended.date().isoformat())


def commits_of(folder: Path) -> tuple[str, ...]:
    """The commits of the code that ran the run in this folder; () where they are unknown."""
    try:
        return tuple((folder / COMMITS).read_text("utf-8").split())
    except FileNotFoundError:
        return ()


def note_commit(folder: Path, commit: str) -> None:
    """Notes that the code of this commit begins, or resumes, the run in this folder; "" is unknown."""
    before = commits_of(folder) if (folder / checkpoint.FILE).exists() else ()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMMITS).write_text("\n".join(dict.fromkeys((*before, commit))) + "\n", "utf-8")


def write(path: Path, stamped: StampedRun, key: str) -> None:
    """Writes the run, so that the file appears whole; equal runs give equal bytes. Raises OSError."""
    run = stamped.run
    head = KeptHead(
        info=msgspec.structs.replace(run.info, sha256=key, seconds=_rounded(run.info.seconds)),
        commits=stamped.commits,
        date=stamped.date,
        asks=KeptAsks.of(run.tally),
    )
    encoder = msgspec.json.Encoder()
    lines = [_sparse(msgspec.to_builtins(head)), *(_sparse(asdict(line)) for line in run.rounds)]
    path.parent.mkdir(parents=True, exist_ok=True)
    making = path.with_suffix(".new")
    making.write_bytes(gzip.compress(encoder.encode_lines(lines), mtime=0))
    making.replace(path)


def read(path: Path, name: RunName, key: str) -> StampedRun | None:
    """The kept run; None if there is no file. Raises SimulationError for a damaged file, which it names."""
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        head = msgspec.json.decode(lines[0] if lines else b"", type=KeptHead)
        record = record_decoder(SimulatedRound)
        rounds = tuple(record(line) for line in lines[1:])
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error, msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
        raise SimulationError(f"{path} is damaged: {error}") from None
    if head.info.sha256 != key or not rounds:
        raise SimulationError(f"{path} is damaged: expected the rounds of the run {key[:10]}")
    return StampedRun(FinishedRun(name, head.info, rounds, head.asks.counts()), head.commits, head.date)


def _sparse(value: object) -> object:
    """The value with rounded floats, and nan as null."""
    if isinstance(value, float):
        return None if isnan(value) else _rounded(value)
    if isinstance(value, Mapping):
        return {name: _sparse(each) for name, each in value.items()}
    return [_sparse(each) for each in value] if isinstance(value, list | tuple) else value


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
