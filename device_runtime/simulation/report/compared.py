"""What pictures and pages are made of: a comparison whose runs are all finished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from device_runtime.simulation.compare.equal import Equal, equal
from device_runtime.simulation.compare.figures import Ran, Summary, Terms, summarise, terms
from device_runtime.simulation.compare.plan import Plan
from device_runtime.simulation.compare.reading import read_all


@dataclass(frozen=True)
class Compared:
    """Read back from the files; `summary` by policy."""

    plan: Plan
    runs: tuple[Ran, ...]
    terms: Terms
    summary: Mapping[str, Summary]
    equal: Equal

    @property
    def policies(self) -> tuple[str, ...]:
        return self.plan.comparison.policies

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.runs[0].info.labels

    def of(self, policy: str) -> list[Ran]:
        """Its runs, by seed."""
        return [run for run in self.runs if run.name.policy == policy]


@dataclass(frozen=True)
class Picture:
    """A drawing: the stem of its files, its title, what it shows, matplotlib's figure without the title."""

    name: str
    title: str
    caption: str
    figure: Any


def compared(plan: Plan) -> Compared:
    """Raises SimulationError when a run is not finished, or its files are damaged."""
    runs = tuple(read_all(plan))
    at = terms(runs, plan.scenario.devices, plan.comparison.target)
    return Compared(plan, runs, at, summarise(runs, at), equal(runs, at, plan.scenario))
