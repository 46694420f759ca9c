"""Figures of finished runs, and of each policy over its seeds, and their texts.

Amounts have a few digits and a fitting unit, or a dash for what was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import floor, isnan, log10, nan, sqrt
from pathlib import Path
from statistics import NormalDist, mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.closing import FullBuffer
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.simulation.history.metrics import (
    AskCounts,
    Axis,
    Curve,
    accuracy,
    learning_efficiency,
    participation,
    spent,
    tally,
)
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.simulation.scenarios import scenario

from .plan import ComparisonPlan
from .run_folder import ASKS, RunInfo, RunName, info_of, read, rounds_of

LATEST = 5
"""Evaluations whose accuracies are averaged, because one alone depends on its round's draw of devices."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, read from its files. `round_asks` are those of the report's time line."""

    name: RunName
    info: RunInfo
    rounds: tuple[SimulatedRound, ...]
    tally: AskCounts
    round_asks: tuple[AskRecord, ...] = ()

    @property
    def curve(self) -> Curve:
        """Accuracy of the served model over virtual time."""
        return accuracy(self.rounds)

    @property
    def ends_s(self) -> float:
        return self.rounds[-1].closed_s if self.rounds else 0.0


@dataclass(frozen=True)
class ComparisonTerms:
    """The terms on which runs are compared: a target accuracy (nan: none), the devices, a point of each axis.

    A point is the least that all runs reached: virtual seconds, rounds, joules, bytes up and down. Energy and
    bytes of `centralised` do not count, because no fleet spent them.
    metric: the name of the metric by which models are judged, which figures call accuracy; metrics: the names
    of further ones. masked: whether updates are masked in any run; noisy: whether sums have central noise.
    """

    at_s: float
    target: float
    devices: int
    rounds: int = 0
    energy_j: float = 0.0
    bytes: float = 0.0
    metric: str = ACCURACY
    metrics: tuple[str, ...] = ()
    masked: bool = False
    noisy: bool = False

    def point(self, axis: Axis) -> float:
        """The point on this axis."""
        return {"rounds": self.rounds, "time": self.at_s, "energy": self.energy_j, "bytes": self.bytes}[axis]


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run. Accuracies are of the served model, 0 to 1; nan: unknown or never reached.

    acc_at_equal_time: the mean of the last `LATEST` evaluations until then.
    bytes_analytic, passes_analytic: by the papers' formulas; the others are counted.
    bytes_moved: up and down.
    bytes_after_first: bytes up and down without the first download of each device.
    forward_passes: compute in F.
    learning_efficiency: per second of local training; nan where no update counted.
    unopened: the share of masked updates that were in sums of too few devices; nan without masks.
    central_epsilon: spent by central noise; nan without.
    """

    acc_at_equal_time: float
    final_acc: float
    best_acc: float
    time_to_target_s: float
    virtual_s: float
    bytes_up: float
    bytes_down: float
    bytes_moved: float
    bytes_after_first: float
    bytes_analytic: float
    energy_j: float
    wasted_j: float
    devices_that_counted: float
    asks_that_counted: float
    fairness: float
    train_time_s: float
    learning_efficiency: float
    forward_passes: float
    passes_analytic: float
    unopened: float = nan
    central_epsilon: float = nan


@dataclass(frozen=True)
class SeedSpread:
    """Mean and standard deviation of a figure over the seeds that have it, `n` of `of`.

    `sd` is that of the sample, nan for fewer than two seeds.
    """

    mean: float
    sd: float
    n: int
    of: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95% confidence interval of the mean by Student's t; None for fewer than two seeds."""
        if self.n < 2:
            return None
        half = t_of_95(self.n - 1) * self.sd / sqrt(self.n)
        return self.mean - half, self.mean + half


Summary = Mapping[str, SeedSpread]
"""A policy's figures over its seeds, by the names of `RunFigures`, and `final_name` of further metrics."""


def terms(runs: Sequence[FinishedRun], devices: int, target: float | None) -> ComparisonTerms:
    """The terms for these runs: equal time is the earliest end of all; `target` None: by `_reachable`."""
    judged = [line for run in runs for line in run.rounds if not isnan(line.eval_acc)]
    fleets = [run for run in runs if not run.name.policy.endswith(scenario.CENTRALISED)] or runs
    return ComparisonTerms(
        at_s=min((run.ends_s for run in runs), default=0.0),
        target=_reachable(runs) if target is None else target,
        devices=devices,
        rounds=int(_least(runs, "rounds")),
        energy_j=_least(fleets, "energy"),
        bytes=_least(fleets, "bytes"),
        metric=" or ".join(sorted({line.metric for line in judged})) or ACCURACY,
        metrics=tuple(dict.fromkeys(name for line in judged for name in line.eval_metrics)),
        masked=any(not isnan(line.unopened) for run in runs for line in run.rounds),
        noisy=any(not isnan(line.central_epsilon) for run in runs for line in run.rounds),
    )


def _least(runs: Sequence[FinishedRun], axis: Axis) -> float:
    """The least total of any run on this axis."""
    return min((float(spent(run.rounds, axis)[-1]) for run in runs if run.rounds), default=0.0)


def _reachable(runs: Sequence[FinishedRun]) -> float:
    """The default target: the accuracy that all runs reach, but at least midway from chance to the best.

    The lower bound is there because the time until chance level says nothing. Chance is one divided by the
    number of classes. nan where no run beats chance.
    """
    reached = [run.curve.best for run in runs if not isnan(run.curve.best)]
    chance = max((1 / len(run.info.labels) for run in runs if run.info.labels), default=0.0)
    best = max(reached, default=nan)
    return max(min(reached), chance + (best - chance) / 2) if best > chance else nan


def figures(run: FinishedRun, at: ComparisonTerms) -> RunFigures:
    """The figures of one run; costs are those of its rounds and of the work that its end cut off."""
    curve, rounds, unheard = run.curve, run.rounds, run.tally.unheard
    devices = 1 if run.name.policy.endswith(scenario.CENTRALISED) else at.devices
    part = participation(run.tally.counted.values(), devices, run.tally.asks)
    trained_s = sum(line.train_time_s for line in rounds) + unheard.compute_s
    bytes_up = sum(line.bytes_up for line in rounds) + unheard.bytes_up
    bytes_down = sum(line.bytes_down for line in rounds) + unheard.bytes_down
    return RunFigures(
        acc_at_equal_time=curve.when(at.at_s, LATEST),
        final_acc=curve.final,
        best_acc=curve.best,
        time_to_target_s=curve.reaches(at.target),
        virtual_s=run.ends_s,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        bytes_moved=bytes_up + bytes_down,
        bytes_after_first=bytes_up + bytes_down - run.tally.first_down,
        bytes_analytic=_bytes_by_formula(run),
        energy_j=sum(line.energy_j for line in rounds) + unheard.energy_j,
        wasted_j=sum(line.wasted_j for line in rounds) + unheard.energy_j,
        devices_that_counted=part.devices,
        asks_that_counted=part.asks,
        fairness=part.fairness,
        train_time_s=trained_s,
        learning_efficiency=learning_efficiency(curve.best, trained_s) if run.tally.kinds else nan,
        forward_passes=sum(line.forward_passes for line in rounds) + unheard.forward_passes,
        passes_analytic=_passes_by_formula(run),
        unopened=_unopened(run),
        central_epsilon=rounds[-1].central_epsilon if rounds else nan,
    )


def _unopened(run: FinishedRun) -> float:
    unopened = sum(line.unopened for line in run.rounds)
    arrived = unopened + sum(run.tally.counted.values())
    return unopened / arrived if arrived else nan


def _bytes_by_formula(run: FinishedRun) -> float:
    """Bytes of all counted updates, which are devices * rounds * participation; nan for an older run."""
    costs = run.info.paper_costs
    return sum(
        costs[kind].update_bytes * count if kind in costs else nan for kind, count in run.tally.kinds.items()
    )


def _passes_by_formula(run: FinishedRun) -> float:
    """Compute (F) of all counted updates; nan if a kind has no formula."""
    passes = {kind: cost.sample_passes for kind, cost in run.info.paper_costs.items()}
    return sum(
        nan if (each := passes.get(kind)) is None else each * samples
        for kind, samples in run.tally.samples.items()
    )


T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5% quantiles of Student's t for 1 to 10 degrees of freedom."""


def t_of_95(freedom: int) -> float:
    """Standard errors on each side of a 95% interval; beyond the table by a series, to 0.003."""
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def spread(values: Iterable[float]) -> SeedSpread:
    """Mean and deviation of the figures of several seeds, some of which may be nan."""
    values = tuple(values)
    numbers = [value for value in values if not isnan(value)]
    return SeedSpread(
        mean=mean(numbers) if numbers else nan,
        sd=stdev(numbers) if len(numbers) > 1 else nan,
        n=len(numbers),
        of=len(values),
    )


def summarise(runs: Sequence[FinishedRun], at: ComparisonTerms) -> dict[str, Summary]:
    """The figures of each policy over its seeds, in the order of the runs."""
    result: dict[str, Summary] = {}
    for policy in dict.fromkeys(run.name.policy for run in runs):
        own = [run for run in runs if run.name.policy == policy]
        rows = [figures(run, at) for run in own]
        result[policy] = {
            field.name: spread(getattr(each, field.name) for each in rows) for field in fields(RunFigures)
        } | {final_name(name): spread(_last(run, name) for run in own) for name in at.metrics}
    return result


PLAIN_NAMES = {"closed_s": "time_s", "eval_acc": "accuracy", "eval_loss": "loss"}
"""Fields of `SimulatedRound` that have a plainer name as a column."""
NUMBERS = ("int", "float")
"""Types of the fields of `SimulatedRound` that become columns; the others have a value for each class."""


def round_columns(rounds: Sequence[SimulatedRound]) -> dict[str, NDArray[Any]]:
    """Every figure of the rounds, each as an array (rounds,), and the further metrics: RMSE, AUROC, .."""
    names = [field.name for field in fields(SimulatedRound) if field.type in NUMBERS]
    metrics = dict.fromkeys(name for line in rounds for name in line.eval_metrics)
    return {
        PLAIN_NAMES.get(name, name): np.array([getattr(line, name) for line in rounds]) for name in names
    } | {name: np.array([line.eval_metrics.get(name, nan) for line in rounds]) for name in metrics}


def final_name(metric: str) -> str:
    """The name, in a `Summary`, of a further metric of the model that is served last."""
    return f"final_{metric}"


def _last(run: FinishedRun, metric: str) -> float:
    latest = (line.eval_metrics[metric] for line in reversed(run.rounds) if metric in line.eval_metrics)
    return next(latest, nan)


def read_run(folder: Path, name: RunName, number: int) -> FinishedRun:
    """Reads a run in one pass over its asks; keeps those of round `number`. Raises SimulationError."""
    part = _Kept(number)
    asks = part.passed(read(folder / ASKS, AskRecord))
    counts = tally(asks)
    return FinishedRun(name, info_of(folder), rounds_of(folder), counts, tuple(part.asks))


def read_all(plan: ComparisonPlan) -> list[FinishedRun]:
    """Reads every run of a comparison. Raises SimulationError when one is not finished."""
    number = shown_round(plan)
    return [read_run(plan.of(name), name, number) for name in plan.names]


def shown_round(plan: ComparisonPlan) -> int:
    """The round in the report's time line: the middle one, when devices have learnt their own speed."""
    return plan.scenario.task.rounds // 2 + 1


@dataclass
class _Kept:
    """Passes asks on, and keeps those of one round."""

    round: int
    asks: list[AskRecord] = field(default_factory=list)

    def passed(self, asks: Iterator[AskRecord]) -> Iterator[AskRecord]:
        for ask in asks:
            if ask.round == self.round:
                self.asks.append(ask)
            yield ask


DASH = "–"
Units = tuple[tuple[str, float], ...]
"""Units with their sizes, the largest first."""
TIMES: Units = (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))
BYTES: Units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
JOULE: Units = (("MWh", 3.6e9), ("kWh", 3.6e6), ("kJ", 1e3), ("J", 1.0))


def unit_for(amount: float, units: Units) -> tuple[str, float]:
    """The largest unit of which the amount has at least two, or else the smallest."""
    return next((unit for unit in units if abs(amount) >= 2 * unit[1]), units[-1])


def duration(seconds: float) -> str:
    """A duration as text: 5 ms, 48 s, 12 min, 3.4 h, 2.1 days."""
    if isnan(seconds):
        return DASH
    if 0 < seconds < 0.1:
        return f"{digits(1000 * seconds, 2)} ms"
    unit, size = unit_for(seconds, TIMES)
    return f"{digits(seconds / size, 2)} {unit}"


def digits(value: float, significant: int = 3) -> str:
    """A number with at least `significant` digits, and all of its whole part: 3.14, 31.4, 314, 3140."""
    if isnan(value):
        return DASH
    if value == round(value):
        return f"{value:,.0f}"
    return f"{value:,.{decimals(value, significant)}f}"


def decimals(value: float, significant: int = 3) -> int:
    """The decimal places that show `significant` digits."""
    return max(0, significant - 1 - floor(log10(abs(value)))) if value else 0


def asked_devices(task: Task) -> str:
    """A phrase that says which devices are asked, and when a round closes before its deadline."""
    if not isinstance(task.closing, FullBuffer):
        those = f" with {', '.join(task.devices_with)}" if task.devices_with else ""
        cohort = (
            f"{task.devices_per_round:,} devices{those}"
            if task.devices_per_round
            else f"every device{those} that is there"
        )
        first = task.ask_all_rounds if task.devices_per_round else 0
        number = f" {first:,}" if first > 1 else ""
        return f"{cohort} asked in each" + (f", all in the first{number}" if first else "")
    at_work = (
        f"{task.devices_per_round:,} devices" if task.devices_per_round else "all devices that are there"
    )
    return f"{at_work} at work, closed by {task.closing.size:,} updates"
