"""Accuracy at equal rounds, time, energy and bytes, for all or some classes, and paired by seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isnan, nan

from device_runtime.simulation.history.metrics import (
    CLOSED_FORM_HEAD,
    SERVED,
    TRAINED_HEAD,
    Axis,
    Model,
    accuracy,
)
from device_runtime.simulation.history.records import SimulatedRound
from device_runtime.simulation.scenarios.scenario import Scenario

from .figures import LATEST, ComparisonTerms, FinishedRun, SeedSpread, Summary, spread

EVERYTHING = ("all classes", "all samples")
"""The titles of the part that is all of the test samples, with and without classes."""
POINTS: tuple[Axis, ...] = ("rounds", "time", "energy", "bytes")
DROPPED = ("drop", "fedavg")
"""The two names of the policy that drops stragglers."""
MOST_NAMED = 20
"""The most classes that are shown one by one."""
MOST_IN_TITLE = 8
LESS = " − "


@dataclass(frozen=True)
class ClassPart:
    """Classes that are evaluated together; `value` is a round's accuracy on them."""

    title: str
    value: Callable[[SimulatedRound], float]


@dataclass(frozen=True)
class EqualRow:
    """A policy's accuracy, 0 to 1, on one part of the classes at equal amounts on each axis of `POINTS`.

    With `against`: the difference to that policy's accuracy with the same seed.
    """

    part: str
    policy: str
    at: Summary
    against: str = ""

    @property
    def title(self) -> str:
        return f"{self.policy}{LESS}{self.against}" if self.against else self.policy


@dataclass(frozen=True)
class EqualTerms:
    """The rows of a comparison at equal rounds, time, energy and bytes.

    `by_class` has a row for each class, and is empty for more than `MOST_NAMED` classes. `lacking` names runs
    that were evaluated but whose folders have no recall by class.
    """

    rows: tuple[EqualRow, ...] = ()
    by_class: tuple[EqualRow, ...] = ()
    lacking: tuple[str, ...] = ()

    def __add__(self, other: EqualTerms) -> EqualTerms:
        """The rows of two comparisons, side by side."""
        return EqualTerms(
            self.rows + other.rows, self.by_class + other.by_class, self.lacking + other.lacking
        )


def equal(runs: Sequence[FinishedRun], at: ComparisonTerms, scenario: Scenario) -> EqualTerms:
    """Compares the runs of one comparison at the points of `at`."""
    labels = max((run.info.labels for run in runs), key=len, default=())
    named = [ClassPart(label, SERVED.recall((number,))) for number, label in enumerate(labels)]
    return EqualTerms(
        tuple(row for part in _parts(scenario, labels, runs) for row in _rows(part, runs, at)),
        tuple(row for part in named for row in _rows(part, runs, at) if not row.against)
        if len(labels) <= MOST_NAMED
        else (),
        tuple(
            str(run.name)
            for run in runs
            if labels and run.curve.value.size and not any(line.eval_acc_by_class for line in run.rounds)
        ),
    )


HEADS = {"trained head": TRAINED_HEAD, "closed-form head": CLOSED_FORM_HEAD}
"""The two heads of a run: the closed-form head is served, and the next base has the trained one."""


def _parts(scenario: Scenario, labels: Sequence[str], runs: Sequence[FinishedRun]) -> Iterator[ClassPart]:
    """The parts of the served model, and those of both heads where runs have a closed-form head."""
    heads = HEADS if any(not isnan(line.closed_form_eval_acc) for run in runs for line in run.rounds) else {}
    yield ClassPart(EVERYTHING[0 if labels else 1], SERVED.acc)
    yield from (ClassPart(f"all classes, {title}", model.acc) for title, model in heads.items())
    of_groups = tuple(held_alone(scenario, labels))
    yield from of_groups
    for title, model in heads.items():
        for part in held_alone(scenario, labels, model):
            yield ClassPart(f"{part.title}, {title}", part.value)
    if labels and not of_groups:
        yield ClassPart("mean of classes", SERVED.recall(range(len(labels))))
        yield ClassPart("worst class", SERVED.recall(range(len(labels)), min))


def held_alone(scenario: Scenario, labels: Sequence[str], model: Model = SERVED) -> Iterator[ClassPart]:
    """Yields the classes that one group of the fleet alone holds, for each group that has some."""
    classes_of = scenario.data.held_alone(tuple(scenario.fleet.groups), len(labels))
    for group, classes in classes_of.items():
        names = ", ".join(labels[number] for number in classes)
        what = names if len(classes) <= MOST_IN_TITLE else f"{len(classes)} classes"
        yield ClassPart(f"{group} alone: {what}", model.recall(classes))


Values = Mapping[Axis, Mapping[int, float]]
"""One policy's figures by axis and seed."""


def _rows(part: ClassPart, runs: Sequence[FinishedRun], at: ComparisonTerms) -> Iterator[EqualRow]:
    """Yields the row of each policy, then the differences; nothing where no run has figures of this part."""
    values = {
        policy: _values(part, runs, policy, at) for policy in dict.fromkeys(r.name.policy for r in runs)
    }
    rows = [
        EqualRow(part.title, policy, {axis: spread(points[axis].values()) for axis in POINTS})
        for policy, points in values.items()
    ]
    if not any(each.n for row in rows for each in row.at.values()):
        return
    yield from rows
    for policy, against in _pairs(rows):
        own, other = values[policy], values[against]
        yield EqualRow(
            part.title,
            policy,
            {axis: differences_by_seed(own[axis], other[axis]) for axis in POINTS},
            against,
        )


def _values(part: ClassPart, runs: Sequence[FinishedRun], policy: str, at: ComparisonTerms) -> Values:
    own = [run for run in runs if run.name.policy == policy]
    return {
        axis: {
            run.name.seed: accuracy(run.rounds, axis, part.value).when(at.point(axis), LATEST) for run in own
        }
        for axis in POINTS
    }


def differences_by_seed(own: Mapping[int, float], other: Mapping[int, float]) -> SeedSpread:
    """The differences between two policies' figures of the same seed."""
    return spread(value - other.get(seed, nan) for seed, value in own.items())


def _pairs(rows: Sequence[EqualRow]) -> Iterator[tuple[str, str]]:
    """Yields the pairs to compare: the best policy at each point with all others, and each with `DROPPED`.

    Of a pair, the policy that was named first comes first, but the one that drops stragglers comes last.
    """
    pairs: set[frozenset[str]] = set()
    for axis in POINTS:
        ranked = [row for row in rows if row.at[axis].n]
        best = [row.policy for row in sorted(ranked, key=lambda row: row.at[axis].mean, reverse=True)]
        pairs |= {frozenset((best[0], other)) for other in best[1:]}
    names = [row.policy for row in rows]
    dropping = [name for name in names if name.rpartition("/")[2] in DROPPED][:1]
    pairs |= {frozenset((name, *dropping)) for name in names}
    for pair in combinations(names, 2):
        if frozenset(pair) in pairs:
            yield (pair[1], pair[0]) if pair[0] in dropping else pair
