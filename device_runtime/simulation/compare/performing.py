"""Does one run of a comparison in this process, and writes its files."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from device_runtime.simulation.executors import choice
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.executors.job import Executor, ExecutorInputs, TrainingJob
from device_runtime.simulation.history.records import AskRecord, RunObserver, SimulatedRound
from device_runtime.simulation.metrics.formulas import paper_cost
from device_runtime.simulation.metrics.tally import tally
from device_runtime.simulation.rounds.callbacks import Callback, CallbackObserver, EndedRun, StartedRun
from device_runtime.simulation.rounds.run import ResumeOptions, prepare, simulate
from device_runtime.simulation.rounds.trackers import tracker_named
from device_runtime.simulation.scenarios.scenario import Scenario, of_policy
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy

from .run_folder import ASKS, RunFiles, RunInfo, RunName, fingerprint, lineage, read, rounds_of

PACKAGES = ("device-runtime", "numpy", "onnxruntime", "torch", "ray")


@dataclass(frozen=True)
class RunOptions:
    """The wanted executor.

    `callbacks` are called in this process, in this order; then `trackers`, by the names of `tracker_named`.
    """

    executor: ExecutorRequest
    callbacks: tuple[Callback, ...] = ()
    trackers: tuple[str, ...] = ()


class CombinedObserver:
    """Several observers as one, called in this order."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def asked(self, ask: AskRecord) -> None:
        for observer in self._observers:
            observer.asked(ask)

    def trained(self, job: TrainingJob, update: Update) -> None:
        for observer in self._observers:
            observer.trained(job, update)

    def closed(self, line: SimulatedRound) -> None:
        for observer in self._observers:
            observer.closed(line)


def perform(
    scenario: Scenario, name: RunName, folder: Path, how: RunOptions, observer: RunObserver
) -> RunInfo:
    """Simulates one policy with one seed into `folder`, with an additional observer.

    Callbacks see a round before it is written, so that a run that they stop does this round again.
    Raises SimulationError, ModelError.
    """
    calls = CallbackObserver((*how.callbacks, *map(tracker_named, how.trackers)))
    own = of_policy(scenario, name.policy)
    sha256 = fingerprint(own, name.seed)
    prepared = prepare(own, name.seed)
    files = RunFiles(folder, lineage(own, name.seed))
    own = prepared.scenario  # with the members of its family
    used: list[str] = []
    try:
        done = files.checkpoint.round if files.checkpoint else 0
        calls.started(StartedRun(name.policy, name.seed, msgspec.to_builtins(own), folder, done + 1))

        def executor(inputs: ExecutorInputs) -> Executor:
            runner = choice.make(inputs, how.executor, [kind.strategy for kind in own.task.kinds])
            used.append(runner.name)
            return runner

        observers = CombinedObserver(calls, files, observer)
        served = simulate(prepared, executor, observers, ResumeOptions(files.checkpoint, files.keeper.take))
        classes = prepared.inputs.bundle.manifest.target.compared == "classes"
        info = RunInfo(
            policy=name.policy,
            seed=name.seed,
            sha256=sha256,
            executor=used[0],
            finished=True,
            seconds=files.keeper.seconds,
            labels=prepared.data.labels if classes else (),
            params_sent=(sent := params_sent(own, prepared.inputs)),
            paper_costs={
                kind.name: paper_cost(kind.strategy, sent[kind.name])
                for kind in own.task.kinds
                if kind.name in sent
            },
            versions=versions(),
        )
        files.finish(served, info)
        if how.callbacks or how.trackers:
            unheard = tally(read(folder / ASKS, AskRecord)).unheard
            calls.ended(EndedRun(name.policy, name.seed, rounds_of(folder), served, folder, unheard))
    except BaseException as error:
        calls.failed(error)
        raise
    finally:
        files.close()
    return info


def params_sent(scenario: Scenario, inputs: ExecutorInputs) -> dict[str, int]:
    """The most float32 values in an update of each kind that is offered and applies."""
    kinds = [kind.strategy for kind in scenario.task.kinds]
    kinds = [kind for kind in kinds if not kind.inapplicable_reason(inputs.bundle.manifest)]
    return {kind.name: max(_values(form, inputs) for form in kind.variants()) for kind in kinds}


def _values(form: AnyStrategy, inputs: ExecutorInputs) -> int:
    if form.member not in inputs.bundles:
        return 0
    return sum(spec.size for spec in form.expected(inputs.of(form.member).manifest))


def versions() -> dict[str, str]:
    """The versions of Python, the platform and the installed packages that figures may depend on."""
    packages = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in PACKAGES:
        try:
            packages[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return packages
