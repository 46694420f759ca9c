"""Shows the progress of a comparison: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Protocol, TextIO

import msgspec

from device_runtime.models.bundles.targets import ACCURACY, metric_text
from device_runtime.simulation.executors.job import TrainingJob
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.strategies.interface.device_half import Update

from .figures import duration
from .run_folder import RunName

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

EVERY_S = 5.0
"""Seconds between two plain lines."""
WORKING_EVERY_S = 1.0
"""Seconds between two progress messages within a round."""


class RoundDone(msgspec.Struct, frozen=True, tag="round"):
    """Message of a run's process, a line of its standard output: a round is over. Times are virtual."""

    round: int
    closed_s: float
    eval_acc: float | None
    participants: int
    metric: str = ACCURACY


class UpdatesTrained(msgspec.Struct, frozen=True, tag="working"):
    """Message of a run's process: `trained` updates of this round are trained by now."""

    round: int
    trained: int


class RunFailed(msgspec.Struct, frozen=True, tag="trouble"):
    """Message of a run's process: why the run failed; its log file may not be writable."""

    why: str


Message = RoundDone | UpdatesTrained | RunFailed


class ProgressView(Protocol):
    """Shows how the runs progress."""

    def moved(self, name: RunName, tick: RoundDone) -> None:
        """A round of a run is over."""

    def working(self, name: RunName, now: UpdatesTrained) -> None:
        """A run is at work within a round."""

    def ended(self, name: RunName, why: str) -> None:
        """A run is finished, or has failed if `why` is not empty."""

    def close(self) -> None:
        """Restores the terminal. May be called twice."""


class RemainingTime:
    """Estimates the remaining seconds from the steps done since the start. `clock` is in seconds."""

    def __init__(self, to_do: int, clock: Callable[[], float]) -> None:
        self._to_do, self._clock, self._began, self._done = to_do, clock, clock(), 0

    def step(self) -> None:
        self._done += 1

    def spare(self, steps: int) -> None:
        """Takes off `steps` that need not be done: an earlier process did them."""
        self._to_do -= steps

    def left_s(self) -> float:
        """The remaining seconds; nan before the first step."""
        if not self._done:
            return float("nan")
        return (self._clock() - self._began) / self._done * (self._to_do - self._done)


Rounds = int | Mapping[RunName, int]
"""The rounds of every run, as one number or by run."""


def rounds_of_runs(names: Sequence[RunName], rounds: Rounds) -> Mapping[RunName, int]:
    """The rounds of each run."""
    return dict.fromkeys(names, rounds) if isinstance(rounds, int) else rounds


class ProgressLines:
    """Prints a line for every run that ends, and one on progress every few seconds."""

    def __init__(
        self,
        names: Sequence[RunName],
        rounds: Rounds,
        out: TextIO,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rounds, self._out, self._clock = rounds_of_runs(names, rounds), out, clock
        self._pace = RemainingTime(sum(self._rounds.values()), clock)
        self._ended = 0
        self._at: dict[RunName, int] = {}
        self._said_at = clock()

    def moved(self, name: RunName, tick: RoundDone) -> None:
        if name not in self._at:
            self._pace.spare(tick.round - 1)
        self._at[name] = tick.round
        self._pace.step()
        rounds = self._rounds[name]
        if self._clock() - self._said_at >= EVERY_S and tick.round < rounds:
            self._say(f"{name}: round {tick.round} of {rounds}, {round_text(tick)}")

    def working(self, name: RunName, now: UpdatesTrained) -> None:
        if self._clock() - self._said_at >= EVERY_S:
            self._say(f"{name}: {within_round_text(now)} of {self._rounds[name]}")

    def ended(self, name: RunName, why: str) -> None:
        self._ended += 1
        self._pace.spare(self._rounds[name] - self._at.get(name, 0))
        done = f"{self._ended} of {len(self._rounds)} runs"
        self._say(f"{name}: failed: {why} ({done})" if why else f"{name}: finished ({done})")

    def close(self) -> None:
        """Nothing to restore."""

    def _say(self, text: str) -> None:
        self._said_at = self._clock()
        left = self._pace.left_s()
        rest = "" if isnan(left) or left < 1 else f"; about {duration(left)} left"
        print(text + rest, file=self._out, flush=True)


class ProgressBars:
    """Shows a bar for all runs, with the remaining time, and one for each run at work.

    `out` is a terminal; None: standard output.
    """

    def __init__(self, names: Sequence[RunName], rounds: Rounds, out: TextIO | None = None) -> None:
        from rich import progress
        from rich.console import Console
        from rich.table import Column

        whole = Column(no_wrap=True, min_width=7)
        self._rounds = rounds_of_runs(names, rounds)
        self._progress: Progress = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=14),
            progress.TextColumn("{task.percentage:>3.0f}%"),
            progress.TimeElapsedColumn(table_column=whole),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(table_column=whole),
            progress.TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True)),
            console=None if out is None else Console(file=out),
        )
        self._all = self._progress.add_task("[bold]all runs", total=sum(self._rounds.values()), doing="")
        self._bars: dict[RunName, TaskID] = {}
        self._progress.start()

    def moved(self, name: RunName, tick: RoundDone) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(str(name), total=self._rounds[name], doing="")
            self._progress.advance(self._all, tick.round - 1)
        self._progress.update(self._bars[name], completed=tick.round, doing=_brief(tick))
        self._progress.advance(self._all)

    def working(self, name: RunName, now: UpdatesTrained) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(str(name), total=self._rounds[name], doing="")
            self._progress.advance(self._all, now.round - 1)
            self._progress.update(self._bars[name], completed=now.round - 1)
        self._progress.update(self._bars[name], doing=f"round {now.round}: {now.trained} trained")

    def ended(self, name: RunName, why: str) -> None:
        if name in self._bars:
            self._progress.remove_task(self._bars.pop(name))
        if why:
            self._progress.console.print(f"{name}: failed: {why}", markup=False)

    def close(self) -> None:
        self._progress.stop()


def _brief(tick: RoundDone) -> str:
    """The text of `doing`, shortened for a terminal of 80 columns."""
    accuracy = "" if tick.eval_acc is None else f"{metric_text(tick.metric, tick.eval_acc)} "
    return f"{accuracy}at {duration(tick.closed_s)}"


def round_text(tick: RoundDone) -> str:
    """Accuracy so far and the virtual time."""
    judged = "" if tick.eval_acc is None else f"{tick.metric} {metric_text(tick.metric, tick.eval_acc)}, "
    return f"{judged}{duration(tick.closed_s)} of virtual time"


def within_round_text(now: UpdatesTrained) -> str:
    """The progress within a round."""
    return f"{now.trained} update{'s' if now.trained > 1 else ''} trained for round {now.round}"


class ProgressReporter:
    """An observer that tells a `RoundDone` for each round.

    Within a long round it tells `UpdatesTrained` every WORKING_EVERY_S seconds.
    """

    def __init__(self, tell: Callable[[Message], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._send, self._clock = tell, clock
        self._round, self._trained, self._reported = 1, 0, clock()

    def asked(self, ask: AskRecord) -> None:
        """Ignored: there are too many."""

    def trained(self, job: TrainingJob, update: Update) -> None:
        self._round = max(self._round, job.round)  # a resumed run does not begin with round 1
        self._trained += 1
        if self._clock() - self._reported >= WORKING_EVERY_S:
            self._tell(UpdatesTrained(self._round, self._trained))

    def closed(self, line: SimulatedRound) -> None:
        self._round, self._trained = line.round + 1, 0
        accuracy = None if isnan(line.eval_acc) else line.eval_acc
        self._tell(RoundDone(line.round, line.closed_s, accuracy, line.participants, line.metric))

    def _tell(self, message: Message) -> None:
        self._reported = self._clock()
        self._send(message)


class ProgressWriter(ProgressReporter):
    """An observer that writes its messages as JSON lines, for the process that started this one."""

    def __init__(self, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        def write(message: Message) -> None:
            print(msgspec.json.encode(message).decode(), file=out, flush=True)

        super().__init__(write, clock)

    def fail(self, why: str) -> None:
        """Writes the last message: why the run failed."""
        self._tell(RunFailed(why))


class NoProgress:
    """A view that shows nothing."""

    def moved(self, name: RunName, tick: RoundDone) -> None:
        pass

    def working(self, name: RunName, now: UpdatesTrained) -> None:
        pass

    def ended(self, name: RunName, why: str) -> None:
        pass

    def close(self) -> None:
        pass
