"""The results of simulations: runs with their curves, tables, pictures, the report page."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles import tensors
from device_runtime.models.training.metrics import FurtherMetrics, Metric, metric_source
from device_runtime.simulation.compare.figures import FinishedRun, RunFigures, Summary, figures, round_columns
from device_runtime.simulation.compare.plan import ComparisonPlan, plan_in
from device_runtime.simulation.compare.run_folder import SERVED, RunName, model_path
from device_runtime.simulation.data.loading import prepared_targets
from device_runtime.simulation.errors import ScenarioError, SimulationError
from device_runtime.simulation.history.records import SimulatedRound
from device_runtime.simulation.report import canvas
from device_runtime.simulation.report.canvas import ComparedRuns, Drawing, read_comparison
from device_runtime.simulation.report.devices import (
    DeviceTable,
    UpdateTable,
    data_frame,
    device_table,
    update_table,
)
from device_runtime.simulation.report.headline import HasFigures, sentence, short_table
from device_runtime.simulation.report.write import (
    PICTURES,
    all_figures,
    everything,
    short,
    tables,
    with_notes,
    write,
)
from device_runtime.simulation.rounds.run import prepare
from device_runtime.simulation.scenarios.scenario import Scenario, of_policy

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class SimulatedRun:
    """One finished run: a policy with a seed. `folder` has its files (docs/simulation.md).

    rounds: all figures of each round.
    figures: of the whole run, on the terms of its comparison: accuracies from 0 to 1, virtual seconds, bytes,
    joules; nan where unknown.
    """

    policy: str
    seed: int
    folder: Path
    rounds: tuple[SimulatedRound, ...]
    figures: RunFigures
    result: SimulationResult = field(repr=False, compare=False)

    @property
    def round(self) -> NDArray[np.int64]:
        """The numbers of the rounds, from 1; (rounds,)."""
        return np.array([line.round for line in self.rounds], np.int64)

    @property
    def time_s(self) -> NDArray[np.float64]:
        """Virtual seconds from the start of the run to the end of each round; (rounds,)."""
        return np.array([line.closed_s for line in self.rounds], np.float64)

    @property
    def accuracy(self) -> NDArray[np.float64]:
        """Accuracy of the model that each round serves, 0 to 1; nan where not evaluated; (rounds,).

        Where the loss is not of classes, it is the metric that `SimulatedRound.metric` names, such as R2.
        """
        return np.array([line.eval_acc for line in self.rounds], np.float64)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Every figure of the rounds, each as an array (rounds,): round, time_s, accuracy, loss, ..

        The other names are those of `SimulatedRound`, and of the further metrics: RMSE, AUROC, ..
        """
        return round_columns(self.rounds)

    @property
    def kept_rounds(self) -> tuple[int, ...]:
        """The rounds whose models were kept (`keep_models`)."""
        return tuple(line.round for line in self.rounds if model_path(self.folder, line.round).exists())

    def weights(self, round: int | None = None) -> dict[str, NDArray[Any]]:  # noqa: A002
        """The tensors of the model that the run serves in the end, by name, or of one that was kept.

        round: that served it (`keep_models`). Raises SimulationError.
        """
        path = self.folder / SERVED if round is None else model_path(self.folder, round)
        if round is not None and round not in self.kept_rounds:
            numbers = ", ".join(map(str, self.kept_rounds)) or "none: run it with keep_models=1"
            raise SimulationError(f"the model of round {round} was not kept; kept are {numbers}")
        try:
            return tensors.decode(path.read_bytes())
        except OSError as error:
            raise SimulationError(f"cannot read {path}: {error.strerror}") from None

    def evaluate(self, *metrics: Metric, round: int | None = None) -> dict[str, Any]:  # noqa: A002
        """Metrics of a model on the test samples of the run, by name; a `confusion-matrix` is an array.

        metrics: as `metrics` of `dr.simulate`. round: as in `weights`. Raises MetricError, SimulationError.

        >>> run = dr.simulate("digits", devices=4, rounds=1, policies=["few-shot"]).run("few-shot")
        >>> run.evaluate("confusion-matrix")["confusion-matrix"].shape
        (10, 10)
        """
        scenario = of_policy(self.result.scenario, self.policy)
        with ExitStack() as named_here:
            sources = [named_here.enter_context(metric_source(metric)) for metric in metrics]
            task = msgspec.structs.replace(scenario.task, metrics=())
            prepared = prepare(msgspec.structs.replace(scenario, task=task), self.seed)
            bundle, data = prepared.inputs.bundle, prepared.data
            further = FurtherMetrics(sources, bundle.manifest.target)
            model = open_model(bundle)
            model.load(self.weights(round))
            x = bundle.manifest.input.prepare(data.test_x)
            return further.of(model, x, prepared_targets(data, bundle.manifest, data.test_y))


class ComparedFolders:
    """Finished comparisons in one table, as `device-runtime compare` shows them.

    summary: the figures of each policy over its seeds, by policy, or by folder/policy for several folders.
    """

    def __init__(self, of: HasFigures, unfinished: Sequence[str] = ()) -> None:
        self._of, self.unfinished = of, tuple(unfinished)

    @property
    def policies(self) -> tuple[str, ...]:
        """The names of the policies, in the order of the tables."""
        return tuple(self._of.summary)

    @property
    def summary(self) -> Mapping[str, Summary]:
        """Mean and deviation over the seeds, by policy and by the names of `RunFigures`."""
        return self._of.summary

    def table(self, width: int | None = None, whole: bool = False) -> str:
        """The best policy in a sentence, and a table with a row for each; `whole`: all tables.

        Tables wider than `width` characters are cut into several.
        """
        unfinished = (f"not finished: {name}" for name in self.unfinished)
        return "\n".join([self._text(width, whole), *unfinished])

    def _text(self, width: int | None, whole: bool) -> str:
        return (tables if whole else short)(self._of, width)

    def to_dict(self) -> dict[str, Any]:
        """All figures as plain values, for JSON: accuracies from 0 to 1, seconds, bytes, joules.

        None where a figure is unknown.
        """
        whole: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self._figures()))
        return whole

    def _figures(self) -> dict[str, object]:
        return {**all_figures(self._of), "unfinished": self.unfinished}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {', '.join(self.policies)}>"

    def _repr_html_(self) -> str:
        """The sentence and the short table, as a notebook shows them."""
        return f"<p>{escape(sentence(self._of))}</p>{short_table(self._of).html()}"


class SimulationResult(ComparedFolders):
    """The finished runs of `device_runtime.simulate`: every policy with every seed.

    scenario: what was simulated. failed: the policies that are left out, and why. folder: where the runs are
    kept; a temporary one is removed with this object.
    """

    def __init__(self, plan: ComparisonPlan, temporary: bool = False) -> None:
        if temporary:
            weakref.finalize(self, shutil.rmtree, plan.folder, ignore_errors=True)
        self._compared: ComparedRuns = read_comparison(plan)
        super().__init__(self._compared)
        self.scenario: Scenario = plan.scenario
        self.folder = plan.folder
        self.failed: Mapping[str, str] = dict(plan.without)

    @classmethod
    def load(cls, folder: str | Path) -> SimulationResult:
        """The finished policies of a run folder, as `device-runtime simulate --run-dir` makes it.

        Raises ScenarioError for another folder, and where nothing is finished.
        """
        plan = plan_in(Path(folder))
        if not plan.comparison.policies:
            raise ScenarioError(f"nothing is finished in {folder}")
        return cls(plan)

    @cached_property
    def runs(self) -> tuple[SimulatedRun, ...]:
        """Every run, seed by seed, with the policies in their order."""
        return tuple(self._run(run) for run in self._compared.runs)

    def run(self, policy: str, seed: int = 0) -> SimulatedRun:
        """The run of a policy with a seed. Raises SimulationError if there is none."""
        for run in self.runs:
            if (run.policy, run.seed) == (policy, seed):
                return run
        names = ", ".join(f"{run.policy}-{run.seed}" for run in self.runs)
        raise SimulationError(f"there is no run {policy}-{seed}; there are {names}")

    def plot(self, name: str = "accuracy", path: str | Path | None = None) -> Drawing:
        """Draws one of the report's pictures, which a notebook shows; `path` is a PNG to write it to.

        Names: accuracy, costs, groups, participation, round, times, classes.
        The `figure` of what is returned is matplotlib's, without the title. Raises SimulationError for
        another name and where there is nothing to draw, ModuleNotFoundError without matplotlib, and OSError.
        """
        if name not in PICTURES:
            raise SimulationError(f"there is no picture {name!r}; there are {', '.join(PICTURES)}")
        needs_matplotlib()
        with canvas.look():
            drawing = PICTURES[name](self._compared)
        if drawing is None:
            raise SimulationError(f"there is nothing to draw in picture {name!r} of these runs")
        if path is not None:
            drawing.save(path)
        return drawing

    def report(self, folder: str | Path | None = None) -> Path:
        """Writes the report into a folder, by default that of the runs: report.html, a plot, two data files.

        Returns the path of the page. Raises ModuleNotFoundError without matplotlib, and OSError.
        """
        needs_matplotlib()
        return write(self._compared.plan, None if folder is None else Path(folder)).page

    def to_pandas(self) -> DataFrame:
        """A table with a row for each round of each run: policy, seed, and the columns of the runs.

        Raises ModuleNotFoundError without pandas.
        """
        return data_frame(
            [
                {"policy": run.policy, "seed": run.seed} | dict(zip(columns, values, strict=True))
                for run in self.runs
                for columns in [run.columns()]
                for values in zip(*columns.values(), strict=True)
            ]
        )

    def devices(self, policy: str | None = None, seed: int | None = None) -> DeviceTable:
        """A row for each device of each run: kinds, seconds, joules, bytes, and how well it is served.

        policy, seed: of these runs only. A sequence of `DeviceFigures`, which prints as a sentence and a
        table of groups; `summary()` has the worst tenth, spread and fairness. Accuracies need
        `device_test_share` of the data. Raises SimulationError where there is no such run.
        """
        return device_table(self._compared.plan, self._named(policy, seed), self._compared.terms.metric)

    def updates(self, policy: str | None = None, seed: int | None = None) -> UpdateTable:
        """A row for each time that a device was asked for an update: its kind, cost, loss, norm, and fate.

        A sequence of `UpdateFigures`, which prints as a sentence and a table. Arguments and errors as above.
        """
        return update_table(self._compared.plan, self._named(policy, seed))

    def _named(self, policy: str | None, seed: int | None) -> list[RunName]:
        """The runs of a policy and a seed; None: of all."""
        names = self._compared.plan.names
        chosen = [name for name in names if policy in (None, name.policy) and seed in (None, name.seed)]
        if not chosen:
            which = f"policy {policy!r}" if seed is None else f"{policy or 'any policy'} with seed {seed}"
            raise SimulationError(f"there is no run of {which}; there are {', '.join(map(str, names))}")
        return chosen

    def _text(self, width: int | None, whole: bool) -> str:
        return with_notes(self._compared, width, whole)

    def _figures(self) -> dict[str, object]:
        return everything(self._compared)

    def _run(self, run: FinishedRun) -> SimulatedRun:
        plan, at = self._compared.plan, self._compared.terms
        name = run.name
        return SimulatedRun(name.policy, name.seed, plan.of(name), run.rounds, figures(run, at), self)


def needs_matplotlib() -> None:
    """Raises ModuleNotFoundError without matplotlib, with what to install."""
    if find_spec("matplotlib") is None:
        why = "pictures need matplotlib: pip install 'device-runtime[simulation]'"
        raise ModuleNotFoundError(why, name="matplotlib")
