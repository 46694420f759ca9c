"""Trackers: callbacks that log a run to TensorBoard, Weights & Biases or MLflow. Each imports its library."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import Any, Literal

from device_runtime.simulation.errors import SimulationError

from .callbacks import Callback, ClosedRound, EndedRun, StartedRun

AS_ONE = ("fleet.groups", "data.groups")
"""Tables of a scenario whose keys are names of groups; each is one setting."""


State = Literal["finished", "failed", "stopped"]
"""The state in which a run ends; a stopped one was interrupted and may resume."""


class TrackerError(SimulationError):
    """Raised for a tracker that is unknown, or whose library is not installed."""


class Tracker(Callback, ABC):
    """Base of trackers. A subclass gives `begin`, `log` and `end`, which are called for each run."""

    def on_run_start(self, run: StartedRun) -> None:
        self._kinds = [kind["name"] for kind in run.settings["task"]["kinds"]]
        self.begin(run)

    def on_round(self, round: ClosedRound) -> None:  # noqa: A002
        self.log(round.number, round.seconds, round_figures(round, self._kinds))

    def on_run_end(self, result: EndedRun) -> None:
        self.log(len(result.rounds), result.seconds, final_figures(result))
        self.end("finished")

    def on_run_failed(self, error: BaseException) -> None:
        self.end("failed" if isinstance(error, Exception) else "stopped")

    @abstractmethod
    def begin(self, run: StartedRun) -> None:
        """Opens the tracker's run and logs the settings."""

    @abstractmethod
    def log(self, number: int, seconds: float, figures: Mapping[str, float]) -> None:
        """Logs figures of a round; `seconds` are virtual."""

    @abstractmethod
    def end(self, state: State) -> None:
        """Closes the tracker's run if one is open."""


class TensorBoard(Tracker):
    """Writes each run into a subfolder of `folder`, as files that `tensorboard --logdir` shows.

    The time of each event is virtual. Needs tensorboardX. Raises TrackerError.
    """

    def __init__(self, folder: str | Path) -> None:
        with _needed("TensorBoard", "tensorboardX"):
            import tensorboardX.summary
        self._library, self._folder = tensorboardX, Path(folder)
        self._writer: Any = None

    def begin(self, run: StartedRun) -> None:
        hidden = run.first_round if run.first_round > 1 else 0  # what an earlier attempt wrote from here on
        self._writer = self._library.SummaryWriter(str(self._folder / run.name), purge_step=hidden)
        settings = {"policy": run.policy, "seed": run.seed, **flat(run.settings)}
        metrics = dict.fromkeys(("final/accuracy", "final/best_accuracy", "final/loss", "final/seconds"), 0.0)
        experiment, start, self._end = self._library.summary.hparams(settings, metrics)
        for summary in (experiment, start):
            self._writer.file_writer.add_summary(summary, 0, 0.0)
        self._writer.flush()

    def log(self, number: int, seconds: float, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, number, seconds)
        self._writer.flush()

    def end(self, state: State) -> None:
        if self._writer is None:
            return
        if state == "finished":
            self._writer.file_writer.add_summary(self._end)
        self._writer.close()
        self._writer = None


class WandB(Tracker):
    """Logs each run to a project of Weights & Biases. Needs wandb. Raises TrackerError.

    mode: online, offline or disabled; None: as the environment says, or online.
    folder: keeps the local files; None: wandb/ in the current folder.
    """

    def __init__(
        self,
        project: str,
        *,
        entity: str | None = None,
        mode: str | None = None,
        folder: str | Path | None = None,
    ) -> None:
        with _needed("WandB", "wandb"):
            import wandb
        self._library = wandb
        self._settings: dict[str, Any] = {"project": project, "entity": entity, "mode": mode, "dir": folder}
        self._run: Any = None

    def begin(self, run: StartedRun) -> None:
        place = f"{self._settings['entity']}/{self._settings['project']}"
        before = _id_before(run, "wandb", place)
        self._run = self._library.init(
            **self._settings,
            name=run.name,
            group=run.policy,
            config={**run.settings, "policy": run.policy, "seed": run.seed},
            id=before,
            resume="allow" if before else None,
        )
        self._run.define_metric("*", step_metric="round")
        _keep_id(run, "wandb", place, self._run.id)

    def log(self, number: int, seconds: float, figures: Mapping[str, float]) -> None:
        self._run.log({"round": number, **figures})

    def end(self, state: State) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if state == "finished" else 1)
            self._run = None


class MLflow(Tracker):
    """Logs each run to an MLflow experiment, which is made if it is missing. Raises TrackerError.

    where: a folder, in which the database mlflow.db is written, or the address of a server, a URI.
    Needs mlflow, or mlflow-skinny with, for a folder, sqlalchemy and alembic.
    """

    def __init__(self, where: str | Path, experiment: str = "device-runtime") -> None:
        local = "://" not in str(where)
        with _needed("MLflow", "mlflow-skinny", *(["sqlalchemy", "alembic"] if local else [])):
            import mlflow
        self._library, self._run = mlflow, ""
        self._kept_by, artifacts = str(where), None
        if local:
            folder = Path(where).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            self._kept_by, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client: Any = mlflow.MlflowClient(self._kept_by)
        self._experiment = self._found(experiment, artifacts)

    def _found(self, name: str, artifacts: str | None) -> str:
        """The id of the experiment; another process may make it at the same time."""
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return str(self._client.create_experiment(name, artifacts))
            except self._library.MlflowException:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)

    def begin(self, run: StartedRun) -> None:
        if before := _id_before(run, "mlflow", self._kept_by):
            self._run = before
            self._client.update_run(before, status="RUNNING")
            return
        self._run = self._client.create_run(self._experiment, run_name=run.name).info.run_id
        _keep_id(run, "mlflow", self._kept_by, self._run)
        settings = {"policy": run.policy, "seed": run.seed, **flat(run.settings)}
        entities = self._library.entities
        params = [entities.Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        for first in range(0, len(params), AT_ONCE):
            self._client.log_batch(self._run, params=params[first : first + AT_ONCE])

    def log(self, number: int, seconds: float, figures: Mapping[str, float]) -> None:
        now, metric = int(time.time() * 1000), self._library.entities.Metric
        values = [metric(name, value, now, number) for name, value in figures.items()]
        self._client.log_batch(self._run, metrics=values)

    def end(self, state: State) -> None:
        if self._run:
            status = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}[state]
            self._client.set_terminated(self._run, status)
            self._run = ""


AT_ONCE, LONGEST = 100, 6000
"""MLflow's limits: parameters in a request, characters of a parameter."""


def tracker_named(name: str) -> Tracker:
    """The tracker with this name. Raises TrackerError.

    It is tensorboard:FOLDER, wandb:PROJECT, wandb:ENTITY/PROJECT, mlflow:FOLDER or mlflow:ADDRESS.
    """
    library, _, where = name.partition(":")
    if library not in ("tensorboard", "wandb", "mlflow") or not where:
        raise TrackerError(f"tracker {name!r}: expected tensorboard:FOLDER, wandb:PROJECT or mlflow:FOLDER")
    if library == "tensorboard":
        return TensorBoard(where)
    if library == "mlflow":
        return MLflow(where)
    entity, _, project = where.rpartition("/")
    return WandB(project, entity=entity or None)


def round_figures(closed: ClosedRound, kinds: Sequence[str] = ()) -> dict[str, float]:
    """The figures of a round by name, without those that are nan; `kinds` are counted also where 0."""
    values = {
        "accuracy": closed.accuracy,
        "loss": closed.loss,
        "train_loss": closed.train_loss,
        "seconds": closed.seconds,
        "energy_j": closed.energy_j,
        "bytes_up": closed.bytes_up,
        "bytes_down": closed.bytes_down,
        "devices": closed.devices,
        "asked": closed.asked,
        **{f"metrics/{name}": value for name, value in closed.record.eval_metrics.items()},
    }
    counts = {**dict.fromkeys(kinds, 0), **closed.contributions}
    values |= {f"contributions/{kind}": count for kind, count in counts.items()}
    return _known(values)


def final_figures(result: EndedRun) -> dict[str, float]:
    """The figures of a whole run by name, without those that are nan."""
    names = ("accuracy", "best_accuracy", "loss", "seconds", "energy_j", "bytes_up", "bytes_down")
    return _known({f"final/{name}": getattr(result, name) for name in names})


def _known(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if not isnan(value)}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with joined names, as task.server.lr; None is left out and lists are JSON."""
    pairs: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in AS_ONE:
            pairs |= flat(value, f"{key}.")
        elif isinstance(value, dict | list | tuple):
            pairs[key] = json.dumps(value)
        elif value is not None:
            pairs[key] = value
    return pairs


@contextmanager
def _needed(tracker: str, *packages: str) -> Iterator[None]:
    """Raises TrackerError where an import fails, or one of the other packages is missing."""
    install = f"pip install {' '.join(packages)}"
    try:
        yield
    except ImportError as error:
        missing = (error.name or packages[0]).partition(".")[0]
        raise TrackerError(f"{tracker} needs {missing}: {install}") from error
    for package in packages[1:]:
        if find_spec(package) is None:
            raise TrackerError(f"{tracker} needs {package}: {install}")


def _id_before(run: StartedRun, tracker: str, place: str) -> str | None:
    """The tracker's id of a run that resumes, if it was kept at this place; else None."""
    if run.first_round == 1 or run.folder is None:
        return None
    try:
        tracker_id, _, where = (run.folder / f"{tracker}.id").read_text("utf-8").strip().partition(" ")
    except OSError:
        return None
    return tracker_id if where == place else None


def _keep_id(run: StartedRun, tracker: str, place: str, value: str) -> None:
    if run.folder is not None:
        (run.folder / f"{tracker}.id").write_text(f"{value} {place}\n", "utf-8")
