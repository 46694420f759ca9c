"""Pretrains networks centrally, on other data than a table's, once, and keeps their weights."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.compare.completing import RunOptions, perform
from device_runtime.simulation.compare.plan import bundle_sha256
from device_runtime.simulation.compare.run_folder import SERVED, RunName, fingerprint, finished
from device_runtime.simulation.compare.running import folder_lock, interruptible
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.history.records import NullObserver, SimulatedRound
from device_runtime.simulation.scenarios.scenario import CENTRALISED, COMPUTER, Scenario, of_policy

from . import exporting
from .exporting import BundleSamples
from .places import DataFolder, Pretrain, SharedTables
from .sampling import spec_of

NAME = RunName(CENTRALISED, 0)
PATIENCE_S = 600.0
"""Seconds to wait for another command that trains the same network."""


def folder() -> Path:
    """The folder of pretrained networks; anything in it may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("device-runtime")) / "pretrained"


def weights(training: Pretrain, shared: SharedTables, where: DataFolder) -> Path:
    """The file of the pretrained weights, trained if it is missing; training that was stopped resumes.

    Raises SimulationError, ModelError.
    """
    own = scenario(training, shared, where)
    sha256 = fingerprint(of_policy(own, CENTRALISED), NAME.seed)
    run = folder() / f"{training.bundle}-{sha256[:6]}{bundle_sha256(own.task.bundle)[:4]}"
    if finished(run, sha256):
        return run / SERVED
    run.mkdir(parents=True, exist_ok=True)
    with interruptible(), folder_lock(run, PATIENCE_S):
        if not finished(run, sha256):
            perform(own, NAME, run, RunOptions(ExecutorRequest("plain")), ProgressPrinter(training))
    return run / SERVED


def scenario(training: Pretrain, shared: SharedTables, where: DataFolder) -> Scenario:
    """The scenario of the training: all data on one device.

    Raises ScenarioError, DataSetError, ModelError.
    """
    entry = shared.entry(training.data, "full")
    samples = BundleSamples(entry, where.form(entry, "full"))
    return Scenario(
        name=f"{training.bundle} on {training.data}",
        fleet=fleets.load(COMPUTER),
        devices=1,
        engine="torch",
        data=spec_of(samples, {"partition": "iid"}, where),
        task=Task(
            bundle=exporting.bundle(training.bundle, shared, samples, where),
            rounds=training.rounds,
            kinds=(KindSettings(name="full", settings=training.settings),),
        ),
    )


@dataclass(frozen=True)
class ProgressPrinter(NullObserver):
    """An observer that prints its progress on standard error."""

    training: Pretrain

    def closed(self, line: SimulatedRound) -> None:
        """Prints the accuracy of every round."""
        what = f"training {self.training.bundle} on {self.training.data}"
        so_far = f"round {line.round} of {self.training.rounds}, accuracy {line.eval_acc:.3f}"
        print(f"{what}: {so_far}", file=sys.stderr, flush=True)
