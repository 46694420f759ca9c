"""A sweep simulates a scenario with many combinations of settings, each in a folder of its own.

Points are judged on samples that are held out of the training samples; no run of a sweep sees test samples.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.simulation.errors import RunsFailed, ScenarioError, SimulationError
from device_runtime.simulation.rounds.forecast import with_deadline
from device_runtime.simulation.rounds.trackers import tracker_named
from device_runtime.simulation.scenarios.scenario import CHOOSE, Scenario, decode

from .completing import Begin, CompletionOptions, RunOptions, do_runs
from .plan import (
    POINTS,
    SWEEP,
    ComparisonPlan,
    WantedRuns,
    check,
    log,
    planned,
)
from .run_folder import RunName, fingerprint
from .running import RunJob
from .swept_settings import POLICY, Value, at_point, point_text, setting_named

VALIDATION_SHARE = 0.2
"""The share of the training samples by which points are judged, if the scenario does not say another."""
BEST = "best"
"""The folder in which points are run alone, on the test samples."""
MOST_POINTS = 10_000
MOST_IN_NAME = 80


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of sweep.json: the scenario, the points, and the seeds as `Comparison` has them."""

    scenario: msgspec.Raw
    points: tuple[dict[str, Value], ...]
    seeds: int | tuple[int, ...] = 1
    policy: str = CHOOSE
    command: str = ""


@dataclass(frozen=True)
class WantedSweep:
    """The wanted points, by values as texts or as Python's; either a grid of `axes`, or a list of `points`.

    policy: of points that do not vary it. seeds: as in `WantedRuns`. command: as it was typed.
    """

    axes: Mapping[str, Sequence[Any]] | None = None
    points: Sequence[Mapping[str, Any]] | None = None
    policy: str = CHOOSE
    seeds: int | tuple[int, ...] | None = None
    command: str = ""


@dataclass(frozen=True)
class SweepPoint:
    """One point: its values by the settings' names, and the plan of its runs.

    scenario: as it is judged on the test samples, with all training samples.
    """

    values: Mapping[str, Value]
    plan: ComparisonPlan
    scenario: Scenario

    @property
    def policy(self) -> str:
        return self.plan.comparison.policies[0]

    @property
    def text(self) -> str:
        return point_text(self.values)


@dataclass(frozen=True)
class SweepPlan:
    """A sweep and its folder. `sweep` is what the folder keeps of it."""

    folder: Path
    sweep: Sweep
    points: tuple[SweepPoint, ...]

    @property
    def settings(self) -> tuple[str, ...]:
        """The names of the settings that are varied."""
        return tuple(self.points[0].values)

    @property
    def judged_by(self) -> str:
        """The samples by which points are judged, in words."""
        share = self.points[0].plan.scenario.data.validation_share
        return f"{share:.0%} of the training samples, held out; no run saw the test samples"

    def missing(self) -> dict[RunName, RunJob]:
        """The runs that are not finished, seed by seed, by the point's text and the seed."""
        jobs = {
            RunName(point.text, name.seed): RunJob(point.plan, name)
            for point in self.points
            for name in point.plan.missing()
        }
        return dict(sorted(jobs.items(), key=lambda item: item[0].seed))

    def rounds(self) -> dict[RunName, int]:
        """The rounds of each run, by the point's text and the seed."""
        return {
            RunName(point.text, name.seed): point.plan.scenario.task.rounds
            for point in self.points
            for name in point.plan.names
        }

    def save(self) -> None:
        """Writes sweep.json, and each point's scenario into its folder. Raises ScenarioError, OSError."""
        for point in self.points:
            point.plan.save()
        text = msgspec.json.format(msgspec.json.encode(self.sweep))
        replace_file(self.folder / SWEEP, text + b"\n", mode=0o666)

    def alone(self, point: SweepPoint) -> Path:
        """Makes the folder in which `simulate --run-dir` runs this point alone, on the test samples."""
        folder = self.folder / BEST / point.plan.folder.name
        comparison = msgspec.structs.replace(point.plan.comparison, target=None)
        ComparisonPlan(with_deadline(point.scenario), comparison, folder).save()
        return folder


def planned_sweep(scenario: Scenario, options: WantedSweep, folder: Path | None = None) -> SweepPlan:
    """The plan of a sweep in `folder`, by default one below runs/ of this scenario.

    Raises ScenarioError for an unknown setting and for a bad value, with what was expected.
    """
    values = _points(scenario, options)
    share = scenario.data.validation_share or VALIDATION_SHARE
    mark = hashlib.sha256(fingerprint(scenario, 0).encode()).hexdigest()[:6]
    folder = folder or Path("runs") / f"{scenario.name}-sweep-{mark}"
    if (
        folder.is_dir()
        and not (folder / SWEEP).exists()
        and any(each.name != POINTS for each in folder.iterdir())
    ):
        raise ScenarioError(f"{folder} is not the folder of a sweep: give another --run-dir")
    points: dict[str, SweepPoint] = {}
    for each in values:
        final = at_point(scenario, each)
        if final.eval_every == 0:
            raise ScenarioError("eval_every is 0: a sweep judges its points by evaluations")
        judged = msgspec.structs.replace(
            final, data=msgspec.structs.replace(final.data, validation_share=share)
        )
        final = msgspec.structs.replace(final, data=msgspec.structs.replace(final.data, validation_share=0.0))
        policy, name = str(each.get(POLICY, options.policy)), _folder_name(each)
        runs = WantedRuns(policies=(policy,), seeds=options.seeds or 1, command=options.command)
        try:
            plan = planned(judged, runs, folder / POINTS / name)
        except ScenarioError as error:
            raise ScenarioError(f"{point_text(each)}: {error}") from None
        points[name] = SweepPoint(each, plan, final)
    sweep = Sweep(
        scenario=msgspec.Raw(scenario.json()),
        points=tuple(dict(each.values) for each in points.values()),
        seeds=options.seeds or 1,
        policy=options.policy,
        command=options.command,
    )
    return SweepPlan(folder, sweep, tuple(points.values()))


def sweep_in(folder: Path) -> SweepPlan:
    """The sweep of this folder. Raises ScenarioError where there is none, or it is damaged."""
    path = folder / SWEEP
    try:
        sweep = msgspec.json.decode(path.read_bytes(), type=Sweep)
    except (FileNotFoundError, NotADirectoryError):
        raise ScenarioError(f"{folder} is not the folder of a sweep") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is damaged: {error}") from None
    selection = WantedSweep(None, sweep.points, sweep.policy, sweep.seeds, sweep.command)
    return planned_sweep(decode(bytes(sweep.scenario)), selection, folder)


def check_sweep(sweep: SweepPlan, options: RunOptions) -> None:
    """Checks every point that has missing runs, before any is started.

    Raises as `plan.check` does, with the point in front of what is wrong with a scenario, and TrackerError.
    """
    for tracker in options.trackers:
        tracker_named(tracker)
    warnings: set[str] = set()

    def warn(sentence: str) -> None:
        if sentence not in warnings:
            warnings.add(sentence)
            log.warning("%s", sentence)

    for point in sweep.points:
        try:
            point.plan.check_folder()
            if missing := point.plan.missing():
                check(point.plan.scenario, missing, options.executor, options.load, warn)
        except (SimulationError, AggregatorError) as error:
            raise ScenarioError(f"{point.text}: {error}") from None


def complete_sweep(
    sweep: SweepPlan, options: CompletionOptions, begin: Begin, locks: tuple[int, ...]
) -> dict[str, str]:
    """Does every missing run; gives the reason of each point that failed, by its text.

    `locks` are those of `working_in`. Raises RunsFailed if all points failed, CallbackError, and
    KeyboardInterrupt: finished runs are kept.
    """
    sweep.save()
    jobs = sweep.missing()
    view = begin(tuple(jobs))
    try:
        do_runs(jobs, options, view, locks)
    except RunsFailed as error:
        whys = {text: why for (text, _), why in error.whys.items()}
        if len(whys) == len(sweep.points):
            raise
        return whys
    finally:
        view.close()
    return {}


def _points(scenario: Scenario, options: WantedSweep) -> list[dict[str, Value]]:
    """The values of all points, by the settings' declared names. Raises ScenarioError."""
    if options.axes and any(isinstance(each, str) or not len(each) for each in options.axes.values()):
        raise ScenarioError("each setting of a sweep has a list of values, such as lr=0.01,0.1")
    count = prod(map(len, options.axes.values())) if options.axes else len(options.points or ())
    if count > MOST_POINTS:
        raise ScenarioError(f"the sweep has {count:,} points, expected {MOST_POINTS:,} at most")
    raw = list(options.points or ())
    if options.axes:
        raw = [dict(zip(options.axes, each, strict=True)) for each in product(*options.axes.values())]
    if not raw or not all(raw):
        raise ScenarioError("a sweep needs settings to vary, such as lr=0.01,0.1")
    points = []
    for each in raw:
        settings = [setting_named(name, scenario) for name in each]
        values = {
            setting.name: setting.value(value) for setting, value in zip(settings, each.values(), strict=True)
        }
        if len(values) < len(each):
            raise ScenarioError(f"{', '.join(each)}: two names of one setting")
        points.append(values)
    for values in points:
        if values.keys() != points[0].keys():
            first, other = point_text(points[0]), point_text(values)
            raise ScenarioError(f"the points have different settings ({first}; {other}): give all the same")
    return points


def _folder_name(values: Mapping[str, Value]) -> str:
    """The name of a point's folder: its values, and a mark where these cannot be a short name of a file."""
    text = point_text(values).replace(", ", ",")
    name = re.sub(r"[^\w.,=+-]", "_", text)
    if name == text and len(name) <= MOST_IN_NAME:
        return name
    return f"{name[:MOST_IN_NAME]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
