"""What each run came to, and each policy over its seeds: pure functions of what is in the files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isnan, nan, sqrt
from pathlib import Path
from statistics import NormalDist, mean, stdev

import msgspec

from device_runtime.simulation import scenario
from device_runtime.simulation.errors import SimulationError
from device_runtime.simulation.metrics.curves import Axis, Curve, accuracy, spent
from device_runtime.simulation.metrics.probes import ProbeLine
from device_runtime.simulation.metrics.tally import (
    Tally,
    analytic_bytes,
    learning_efficiency,
    participation,
    tally,
)
from device_runtime.simulation.records import Ask, RoundLine

from .plan import ComparisonPlan
from .run_folder import ASKS, PROBES, Info, Name, info_of, read, rounds_of


@dataclass(frozen=True)
class Ran:
    """A finished run, read back. `shown` are the asks of the round that its time line is drawn of."""

    name: Name
    info: Info
    rounds: tuple[RoundLine, ...]
    tally: Tally
    shown: tuple[Ask, ...] = ()
    probes: tuple[ProbeLine, ...] = ()

    @property
    def curve(self) -> Curve:
        """Accuracy of the served model over virtual time."""
        return accuracy(self.rounds)

    @property
    def ends_s(self) -> float:
        return self.rounds[-1].closed_s if self.rounds else 0.0


@dataclass(frozen=True)
class ComparisonTerms:
    """What all runs are compared at: a target accuracy (nan: none), how many devices, a point of each axis.

    A point is the least that all runs reached: virtual seconds, rounds, joule, bytes up and down. Energy and
    bytes of `centralised` do not count: no fleet spent them.
    """

    at_s: float
    target: float
    devices: int
    rounds: int = 0
    energy_j: float = 0.0
    bytes: float = 0.0

    def point(self, axis: Axis) -> float:
        """Where on this axis."""
        return {"rounds": self.rounds, "time": self.at_s, "energy": self.energy_j, "bytes": self.bytes}[axis]


@dataclass(frozen=True)
class RunFigures:
    """One run. Accuracies are of the served model, 0 to 1; nan: not measured, or never reached.

    `bytes_analytic` is the papers' formula beside what was counted (`bytes_up`, `bytes_down`);
    `forward_passes` is compute in F; `learning_efficiency` per second of local training.
    """

    acc_at_equal_time: float
    final_acc: float
    best_acc: float
    time_to_target_s: float
    virtual_s: float
    bytes_up: float
    bytes_down: float
    bytes_analytic: float
    energy_j: float
    wasted_j: float
    devices_that_counted: float
    asks_that_counted: float
    fairness: float
    train_time_s: float
    learning_efficiency: float
    forward_passes: float


@dataclass(frozen=True)
class SeedSpread:
    """Over the seeds that have the figure, `n` of `of`; `sd` is the sample's, 0 for one seed."""

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
"""By the names of `Figures`."""


def terms(runs: Sequence[Ran], devices: int, target: float | None) -> ComparisonTerms:
    """Equal time is the earliest end of all runs; the target is by `_reachable` where None is given."""
    fleets = [run for run in runs if not run.name.policy.endswith(scenario.CENTRALISED)] or runs
    return ComparisonTerms(
        at_s=min((run.ends_s for run in runs), default=0.0),
        target=_reachable(runs) if target is None else target,
        devices=devices,
        rounds=int(_least(runs, "rounds")),
        energy_j=_least(fleets, "energy"),
        bytes=_least(fleets, "bytes"),
    )


def _least(runs: Sequence[Ran], axis: Axis) -> float:
    """Of what each run spent in all."""
    return min((float(spent(run.rounds, axis)[-1]) for run in runs if run.rounds), default=0.0)


def _reachable(runs: Sequence[Ran]) -> float:
    """The accuracy that all runs reach, or half of what the best run learnt beyond chance where one reaches
    less: the time until chance says nothing. Chance is one class of all. nan where no run beats chance.
    """
    reached = [run.curve.best for run in runs if not isnan(run.curve.best)]
    chance = max((1 / len(run.info.labels) for run in runs if run.info.labels), default=0.0)
    best = max(reached, default=nan)
    return max(min(reached), chance + (best - chance) / 2) if best > chance else nan


def figures(run: Ran, at: ComparisonTerms) -> RunFigures:
    """Of one run."""
    curve, rounds = run.curve, run.rounds
    part = participation(run.tally.counted.values(), at.devices, run.tally.asks)
    trained_s = sum(line.train_time_s for line in rounds)
    return RunFigures(
        acc_at_equal_time=curve.when(at.at_s),
        final_acc=curve.final,
        best_acc=curve.best,
        time_to_target_s=curve.reaches(at.target),
        virtual_s=run.ends_s,
        bytes_up=sum(line.bytes_up for line in rounds),
        bytes_down=sum(line.bytes_down for line in rounds),
        bytes_analytic=_analytic(run),
        energy_j=sum(line.energy_j for line in rounds),
        wasted_j=sum(line.wasted_j for line in rounds),
        devices_that_counted=part.devices,
        asks_that_counted=part.asks,
        fairness=part.fairness,
        train_time_s=trained_s,
        learning_efficiency=learning_efficiency(curve.best, trained_s),
        forward_passes=sum(line.forward_passes for line in rounds),
    )


def _analytic(run: Ran) -> float:
    """Each kind's updates by the formula, where counted updates are devices * rounds * participation."""
    return sum(
        analytic_bytes(run.info.params_sent.get(kind, 0), count, 1, 1.0)
        for kind, count in run.tally.kinds.items()
    )


T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's t, 97.5%, of 1 to 10 degrees of freedom."""


def t_of_95(freedom: int) -> float:
    """How many standard errors a two-sided 95% interval reaches; beyond the table to 0.003."""
    if freedom <= len(T_95):
        return T_95[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def spread(values: Iterable[float]) -> SeedSpread:
    """Of figures of several seeds, some of which may be nan."""
    values = tuple(values)
    known = [value for value in values if not isnan(value)]
    return SeedSpread(
        mean=mean(known) if known else nan,
        sd=stdev(known) if len(known) > 1 else 0.0,
        n=len(known),
        of=len(values),
    )


def summarise(runs: Sequence[Ran], at: ComparisonTerms) -> dict[str, Summary]:
    """By policy, in the order in which they come."""
    result: dict[str, Summary] = {}
    for policy in dict.fromkeys(run.name.policy for run in runs):
        mine = [figures(run, at) for run in runs if run.name.policy == policy]
        result[policy] = {
            field.name: spread(getattr(each, field.name) for each in mine) for field in fields(RunFigures)
        }
    return result


# FROM reading: Finished runs, from their files.


def read_run(folder: Path, name: Name, shown: int) -> Ran:
    """One run, in one pass over its asks; `shown` is the round whose asks are kept.

    Raises SimulationError.
    """
    kept = _Kept(shown)
    asks = kept.passed(read(folder / f"{ASKS}.jsonl", Ask))
    counts = tally(asks)
    return Ran(name, info_of(folder), rounds_of(folder), counts, tuple(kept.asks), _probes(folder))


def read_all(plan: ComparisonPlan) -> list[Ran]:
    """Every run of a comparison. Raises SimulationError when one is not finished."""
    shown = shown_round(plan)
    return [read_run(plan.of(name), name, shown) for name in plan.names]


def shown_round(plan: ComparisonPlan) -> int:
    """The round that a time line is drawn of: the middle one, when devices know their own speed."""
    return plan.scenario.task.rounds // 2 + 1


@dataclass
class _Kept:
    """Lets asks pass, and keeps those of one round."""

    round: int
    asks: list[Ask] = field(default_factory=list)

    def passed(self, asks: Iterator[Ask]) -> Iterator[Ask]:
        for ask in asks:
            if ask.round == self.round:
                self.asks.append(ask)
            yield ask


def _probes(folder: Path) -> tuple[ProbeLine, ...]:
    """What was seen of local models; nothing where nobody looked. Raises SimulationError."""
    try:
        return tuple(msgspec.json.Decoder(ProbeLine).decode_lines((folder / PROBES).read_bytes()))
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as error:
        raise SimulationError(f"{folder / PROBES} is damaged: {error}") from None
