"""Runs our simulator, all of `simulation.rounds.run.simulate`, beside its peers.

    --executor NAME    plain, processes, batched, or auto, which chooses (auto)
    --engine NAME      what devices train on: onnxruntime, torch, or auto (auto)

All devices are alike, always there and quick enough; a cohort is drawn of them each round; no evaluation.
The bundle of a work is exported once, beside its samples, from `models.networks`. Work C is done by a
kind of update that only benchmarks have, see echo.py. Seconds are taken when a round's line comes: the first
has the preparations.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import echo
import numpy as np
from work import SCALE, SEED, WORKS, Arrays, Job, report, round_seed, user_name, weights

from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Source
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.executors.choice import ExecutorRequest, make
from device_runtime.simulation.executors.job import ExecutorInputs
from device_runtime.simulation.executors.job import TrainingJob as Training
from device_runtime.simulation.history.records import AskRecord, SimulatedRound
from device_runtime.simulation.rounds.run import PreparedRun, simulate
from device_runtime.simulation.scenarios.scenario import Scenario
from device_runtime.strategies.interface.device_half import Update

LABELS = tuple(str(label) for label in range(10))
FLEET = {"name": "alike", "groups": {"user": {"profile": "pi-5", "share": 1.0}}}
AGES_S = 1e9


@dataclass
class Marks:
    """Takes the time of every round, and sees that devices are called and shuffle as said."""

    seconds: list[float]
    users: int

    def asked(self, ask: AskRecord) -> None:
        if ask.fate not in ("counted", "unheard"):
            raise SystemExit(f"{ask.device} in round {ask.round}: {ask.fate}, {ask.why}")

    def trained(self, job: Training, update: Update) -> None:
        if (job.name, job.seed) != (user_name(job.device, self.users), round_seed(job.round - 1)):
            raise SystemExit(f"device {job.device} is {job.name} with seed {job.seed}: not as in work.py")

    def closed(self, line: SimulatedRound) -> None:
        self.seconds.append(time.perf_counter())


def bundle(job: Job) -> Bundle:
    """Of the work's network with its weights, exported unless it is there."""
    folder = Path(job.data) / "bundle"
    if not (folder / "manifest.json").exists():
        import torch

        from device_runtime.models.export.export import ExportSpec, export
        from device_runtime.models.networks import build

        shape = WORKS[job.work].shape
        source = Source("cnn", {}) if job.work == "A" else Source("linear", {"inputs": shape[0]})
        module = build(source.network, source.settings)
        values = [torch.from_numpy(value) for value in weights(job).values()]
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), values, strict=True):
                parameter.copy_(value)
        export(
            module,
            ExportSpec(
                f"work-{job.work.lower()}",
                InputSpec(shape, scale=float(SCALE)),
                LABELS,
                sets={"all": {}},
                source=source,
            ),
            folder,
        )
    return Bundle.open(folder)


@dataclass(frozen=True)
class Rounds:
    """How many rounds a run has, with how many devices, of which `cohort` are in a round."""

    rounds: int
    devices: int
    cohort: int
    eval_every: int = 0  # rounds between evaluations; 0: none


def trained_in_full(batch: int, lr: float) -> KindSettings:
    """One epoch of SGD without momentum on all weights."""
    settings = {"epochs": 1, "batch": batch, "lr": lr, "momentum": 0.0, "weight_decay": 0.0}
    return KindSettings(name="full", settings=settings)


def alike(inputs: ExecutorInputs, kind: KindSettings, rounds: Rounds, tests: int = 0) -> PreparedRun:
    """A run of devices that are all alike and quick enough; its first `tests` samples are for evaluation."""
    task = Task(
        bundle=str(inputs.bundle.path),
        rounds=rounds.rounds,
        round_deadline_s=AGES_S,
        min_contributions=rounds.cohort,
        devices_per_round=rounds.cohort,
        kinds=(kind,),
    )
    scenario = Scenario(
        fleet=fleets.read(FLEET), task=task, devices=rounds.devices, eval_every=rounds.eval_every
    )
    x, y = inputs.clients.x, inputs.clients.y
    return PreparedRun(scenario, SEED, inputs, DataSet(x, y, x[:tests], y[:tests], LABELS))


def prepared(job: Job, engine: str) -> PreparedRun:
    """The scenario of a job, with the samples mapped into memory."""
    work, clients = WORKS[job.work], Clients.open(Path(job.data))
    kind = trained_in_full(work.batch, job.lr) if work.trains else KindSettings(name=echo.Echo.name)
    inputs = ExecutorInputs(bundle(job), clients, EngineSettings(engine=engine))
    return alike(inputs, kind, Rounds(job.rounds, job.users, job.cohort))


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--engine", default="auto")
    options, _ = parser.parse_known_args()
    job = Job.read(__doc__)
    echo.register()
    ready = prepared(job, options.engine)
    marks = Marks([time.perf_counter()], job.users)
    request = ExecutorRequest(
        options.executor, job.workers if options.executor in ("auto", "processes") else None
    )
    kinds = [kind.strategy for kind in ready.scenario.task.kinds]
    served = simulate(ready, lambda inputs: make(inputs, request, kinds), marks)

    def final() -> Arrays:
        names = [parameter.name for parameter in ready.inputs.bundle.manifest.parameters]
        return {
            name: np.asarray(served[own]) for name, own in zip(WORKS[job.work].weights, names, strict=True)
        }

    report(job, marks.seconds, final, ("numpy", "onnxruntime", "torch"))


if __name__ == "__main__":
    main()
