"""Sweeps settings of a simulated task: what `device-runtime simulate --sweep` does."""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from device_runtime import own_files
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.networks.own import is_portable
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.compare.completing import (
    CompletionOptions,
    RunOptions,
    may_run_elsewhere,
    working_in,
)
from device_runtime.simulation.compare.sweep import (
    SweepPlan,
    SweepPoint,
    WantedSweep,
    check_sweep,
    complete_sweep,
    planned_sweep,
    sweep_in,
)
from device_runtime.simulation.compare.swept_settings import POLICY, Value, at_point, setting_named
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.data.loading import LastDataSet
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.report.canvas import Drawing
from device_runtime.simulation.report.devices import data_frame
from device_runtime.simulation.report.sweep_report import SweepFigures, drawn, read_sweep, write_sweep
from device_runtime.simulation.scenarios.scenario import Scenario

from .progress import view_of
from .result import SimulationResult, needs_matplotlib
from .simulating import (
    PRESET,
    Kind,
    OwnCode,
    TorchSettings,
    count_of,
    exported,
    scenario_of,
    seeds_of,
    trained_by_code,
)

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger(__name__)


def sweep(
    task: Scenario | Task | Bundle | str | Path | Callable[..., Any] = PRESET,
    *,
    points: Sequence[Mapping[str, Any]] | None = None,
    policy: str | Sequence[str] = "mixed",
    fleet: FleetSpec | str | Path | None = None,
    data: DataSpec | None = None,
    kinds: Iterable[Kind] | None = None,
    seeds: int | Sequence[int] | None = None,
    validation_share: float | None = None,
    module: Callable[..., Any] | str | None = None,
    loss: Callable[..., Any] | str | None = None,
    device: str | None = None,
    precision: str | None = None,
    run_dir: str | Path | None = None,
    executor: ExecutorRequest | str = "auto",
    parallel: int | None = None,
    progress: bool | None = None,
    **settings: Any,
) -> SweepResult:
    """Simulates a task at points of some settings; the best is named by samples held out of training.

    settings: of the task, its kinds, the data or the scenario, by their names in files or on the command
    line: lr, epochs, rounds, deadline, alpha, devices; of one kind as `**{"few-shot.shots": [5, 10]}`. A list
    is tried value by value, every combination of several lists; a single value holds at every point.
    points: a list of single points in place of lists, each a table of settings.
    policy: as in `simulate`; several are tried like values of a setting.
    validation_share: of the training samples, which no device then has, and by which points are judged
    (default: 0.2, or as the data says). No run of a sweep sees the test samples.
    seeds: run every point with seeds 0 to `seeds` - 1 (default: 1), or with those listed.
    The others are as in `simulate`; with `run_dir` a stopped sweep goes on, and takes further points.

    A point that fails is left out with a warning (`failed` of the result). Raises as `simulate` does, and
    ScenarioError before anything is run for an unknown setting, or a value that is not allowed.

    >>> result = sweep("digits", lr=[0.01, 0.1], devices=10, rounds=2)
    >>> len(result.points), result.best.values.keys()
    (2, dict_keys(['lr']))
    """
    if own_files.is_loading():
        raise ScenarioError("sweep was called while another process loaded this file for its classes")
    trained_by = TorchSettings(device, precision)
    code = exported(OwnCode(task, module, loss), data, trained_by, progress is not False)
    scenario = scenario_of(code.task, fleet=fleet, data=data, kinds=kinds)
    axes = {name: each for name, values in settings.items() if (each := _listed(values)) is not None}
    if not isinstance(policy, str):
        axes[POLICY] = list(policy)
    if points is not None and axes:
        raise ScenarioError(f"points and a list of {next(iter(axes))}: give one of them")
    fixed = [(setting_named(name, scenario), each) for name, each in settings.items() if name not in axes]
    scenario = at_point(scenario, {setting.name: setting.value(value) for setting, value in fixed})
    if validation_share is not None:
        if not 0 < validation_share < 1:
            raise ScenarioError(
                f"validation_share is {validation_share}, expected more than 0 and less than 1"
            )
        spec = msgspec.structs.replace(scenario.data, validation_share=validation_share)
        scenario = msgspec.structs.replace(scenario, data=spec)
    selection = WantedSweep(
        axes=axes or None,
        points=points,
        policy=policy if isinstance(policy, str) else "mixed",
        seeds=seeds_of(seeds),
        command="device_runtime.sweep(..)",
    )
    request = executor if isinstance(executor, ExecutorRequest) else ExecutorRequest(executor)
    folder = Path(run_dir) if run_dir is not None else Path(tempfile.mkdtemp(prefix="device-runtime-"))
    try:
        with trained_by_code(scenario, code, trained_by) as scenario:
            plan = planned_sweep(scenario, selection, folder)
            failed = _completed(plan, RunOptions(request), count_of("parallel", parallel), progress)
        return SweepResult(plan, failed, temporary=run_dir is None)
    except BaseException:
        if run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _listed(values: Any) -> list[Any] | None:
    """The values of a setting that is varied; None for a single value."""
    if isinstance(values, list | tuple | range):
        return list(values)
    return list(values) if getattr(values, "ndim", 0) == 1 else None  # an array


def _completed(
    plan: SweepPlan, run: RunOptions, parallel: int | None, progress: bool | None
) -> dict[str, str]:
    """Does the missing runs, and returns the reasons of the points that failed."""
    missing = plan.missing()
    elsewhere = len(missing) > 1 and all(may_run_elsewhere(point.plan) for point in plan.points)
    own = [source[1:] for source in plan.points[0].plan.scenario.own_code if not is_portable(source)]
    if own and len(missing) > 1:
        warnings.warn(
            f"only this process has {', '.join(own)}: it does all runs", RuntimeWarning, stacklevel=3
        )
    check_sweep(plan, replace(run, load=LastDataSet().load))
    options = CompletionOptions(run, parallel, here=not elsewhere)
    with working_in(plan.folder) as locks:
        failed = complete_sweep(plan, options, lambda names: view_of(progress, names, plan.rounds()), locks)
    if failed:
        warnings.warn(f"points failed: {'; '.join(failed)}", RuntimeWarning, stacklevel=3)
    return failed


class SweepResult:
    """The points of a sweep, judged by samples that were held out of training.

    failed: the points without figures, and why. folder: where the runs are kept; a temporary one is removed
    with this object.
    """

    def __init__(self, plan: SweepPlan, failed: Mapping[str, str], temporary: bool = False) -> None:
        if temporary:
            weakref.finalize(self, shutil.rmtree, plan.folder, ignore_errors=True)
        self._read: SweepFigures = read_sweep(plan, failed)
        self.folder = plan.folder

    @classmethod
    def load(cls, folder: str | Path) -> SweepResult:
        """The sweep of a folder, as `sweep` and `simulate --sweep` make it. Raises ScenarioError."""
        return cls(sweep_in(Path(folder)), {})

    @property
    def points(self) -> tuple[SweepPoint, ...]:
        """All points; `values` has the settings of a point by name."""
        return self._read.plan.points

    @property
    def best(self) -> SweepPoint:
        """The point with the highest mean over the seeds; its `scenario` is evaluated on the test samples.

        `simulate(best.scenario, policies=[best.policy])` runs it alone. Raises ScenarioError where no point
        has been evaluated.
        """
        if self._read.best is None:
            raise ScenarioError(self._read.sentence())
        return self._read.best.point

    @property
    def failed(self) -> dict[str, str]:
        """Why points have no figures, by their text."""
        return {each.point.text: each.why for each in self._read.points if each.why}

    def __getitem__(self, values: Mapping[str, Value]) -> SimulationResult:
        """The runs of the point with these values, whose test samples are those of validation.

        Raises ScenarioError for another point, and for one whose runs are not finished.
        """
        for each in self._read.points:
            if dict(each.point.values) == dict(values):
                if each.why:
                    raise ScenarioError(f"{each.point.text}: {each.why}")
                return SimulationResult(each.point.plan)
        texts = "; ".join(point.text for point in self.points)
        raise ScenarioError(f"there is no point {dict(values)}; there are {texts}")

    def table(self, width: int | None = None) -> str:
        """The best point, how points are judged, and a row for each: mean and deviation over the seeds."""
        return self._read.text(width)

    def plot(self, path: str | Path | None = None) -> Drawing:
        """Draws the points, which a notebook shows; `path` is a PNG to write it to.

        Raises ModuleNotFoundError without matplotlib, and OSError.
        """
        needs_matplotlib()
        drawing = drawn(self._read)
        if path is not None:
            drawing.save(path)
        return drawing

    def report(self) -> str:
        """Writes sweep.png, sweep.csv and the best point's scenario; returns the command that runs it alone.

        Raises ModuleNotFoundError without matplotlib, and OSError.
        """
        needs_matplotlib()
        return write_sweep(self._read).command

    def to_dict(self) -> list[dict[str, Any]]:
        """The table as plain values, a dict for each point; None where a figure is unknown."""
        return self._read.rows()

    def to_pandas(self) -> DataFrame:
        """The table as a data frame. Raises ModuleNotFoundError without pandas."""
        return data_frame(self._read.rows())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.points)} points; {self._read.sentence()}>"

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        return self._read.table().html()
