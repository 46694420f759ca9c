"""Predicts what a round costs a fleet, and who is a straggler: what `device-runtime fleet` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.report import fleet as report
from device_runtime.simulation.report.canvas import Drawing
from device_runtime.simulation.rounds.forecast import FleetForecast, with_deadline
from device_runtime.simulation.rounds.forecast import forecast as predict
from device_runtime.simulation.scenarios.scenario import Scenario

from .result import needs_matplotlib
from .simulating import PRESET, scenario_of


class FleetPrediction:
    """What `device_runtime.forecast` predicts. `figures` has arrays with a row for each device."""

    def __init__(self, figures: FleetForecast) -> None:
        self.figures = figures

    @property
    def deadline_s(self) -> float:
        """The deadline in seconds: as it was given, or found for a share of stragglers."""
        return self.figures.deadline_s

    @property
    def stragglers(self) -> float:
        """The share of the devices that are stragglers, 0 to 1."""
        return float(self.figures.straggler.mean())

    def table(self) -> str:
        """Who is a straggler, and the costs of each kind of update by group, as the command prints them."""
        return report.text(self.figures)

    def to_dict(self) -> dict[str, Any]:
        """The medians of each kind by group as plain values: seconds, bytes, joules; None where unknown."""
        return report.by_group(self.figures)

    def plot(self, path: str | Path | None = None) -> Drawing:
        """Draws time, memory and energy of each kind by group; `path` is a PNG to write it to.

        Raises ModuleNotFoundError without matplotlib, and OSError.
        """
        needs_matplotlib()
        drawing = report.picture(self.figures)
        if path is not None:
            drawing.save(path)
        return drawing

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {report.stragglers(self.figures)}>"


def forecast(
    task: Scenario | Task | Bundle | str | Path = PRESET,
    *,
    fleet: FleetSpec | str | Path | None = None,
    data: DataSpec | None = None,
    devices: int | None = None,
    deadline: float | str | None = None,
    seed: int = 0,
) -> FleetPrediction:
    """Predicts time, memory and energy of each kind of update for a fleet, and who is a straggler.

    By the cost model with which devices choose; nothing is trained. Arguments are those of `simulate`; `seed`
    draws the devices. Raises as `simulate` does.

    >>> forecast("digits", devices=10, deadline="30% stragglers").stragglers
    0.3
    """
    scenario = scenario_of(task, fleet=fleet, data=data, devices=devices, deadline=deadline)
    return FleetPrediction(predict(with_deadline(scenario), seed))
