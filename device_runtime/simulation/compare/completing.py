"""Does the missing runs of a comparison, in other processes or in this one, and writes their files."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.aggregator.tasks.drawing import UNIFORM
from device_runtime.device.selection.choose import policy_named
from device_runtime.models.available_engines.available import in_turn
from device_runtime.models.errors import ModelError
from device_runtime.models.networks.own import is_portable
from device_runtime.profiles.measure import usable_cores
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.errors import RunsFailed, SimulationError
from device_runtime.simulation.executors import choice
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.executors.job import Executor, ExecutorInputs, TrainingJob
from device_runtime.simulation.history.checkpoint import Checkpoint
from device_runtime.simulation.history.metrics import paper_cost, tally
from device_runtime.simulation.history.records import AskRecord, RunObserver, SimulatedRound
from device_runtime.simulation.rounds.callbacks import (
    Callback,
    CallbackError,
    CallbackObserver,
    EndedRun,
    StartedRun,
)
from device_runtime.simulation.rounds.device_tests import evaluations
from device_runtime.simulation.rounds.run import Load, ResumeOptions, prepare, simulate
from device_runtime.simulation.rounds.trackers import tracker_named
from device_runtime.simulation.scenarios.scenario import Scenario, of_policy
from device_runtime.strategies.errors import KindError
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy, inapplicable_reason
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.plugins import Plugin

from .plan import RUNS, ComparisonPlan, check, whole_plan_in
from .progress import Message, ProgressReporter, ProgressView, RoundDone, UpdatesTrained
from .run_folder import ASKS, RunFiles, RunInfo, RunName, fingerprint, lineage, read, rounds_of
from .running import ProcessOptions, RunJob, folder_lock, has_command, interruptible, run_jobs

Begin = Callable[[Sequence[RunName]], ProgressView]
"""Gives the view of these runs, which are about to begin; there may be none."""


@dataclass(frozen=True)
class CompletionOptions:
    """The way to do the missing runs.

    parallel: the runs at a time, each a process; None: as many as usable cores.
    here: do them in this process, one after another.
    """

    run: RunOptions
    parallel: int | None = None
    here: bool = False


def check_runs(plan: ComparisonPlan, options: RunOptions) -> None:
    """Checks the folder, the trackers, and what every missing run needs.

    Raises as `check` does, TrackerError, OSError.
    """
    plan.check_folder()
    for tracker in options.trackers:
        tracker_named(tracker)
    if missing := plan.missing():
        check(plan.scenario, missing, options.executor, options.load)


@contextmanager
def working_in(folder: Path, parts: Sequence[Path] = ()) -> Iterator[tuple[int, ...]]:
    """Makes and locks the folder, for runs that signals interrupt; gives the locks' file descriptors.

    parts: only these folders in it, of the runs that are done here, so that others can be done at the same
    time. Raises ScenarioError while another simulation works there, and OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with interruptible(), ExitStack() as stack:
        locks = [stack.enter_context(folder_lock(folder, shared=bool(parts)))]
        for part in parts:
            part.mkdir(parents=True, exist_ok=True)
            locks.append(stack.enter_context(folder_lock(part)))
        yield tuple(locks)


def complete(
    plan: ComparisonPlan, options: CompletionOptions, begin: Begin, locks: tuple[int, ...]
) -> tuple[ComparisonPlan, SimulationError | None]:
    """Does every missing run; `locks` are those of `working_in`.

    Returns the plan, or that of the whole comparison if all of its parts are now finished in the folder, and
    None; where runs failed, the plan without their policies and the first error.
    Raises SimulationError if no policy is left, CallbackError, and KeyboardInterrupt: finished runs are kept.
    """
    (plan.folder / RUNS).mkdir(parents=True, exist_ok=True)
    with folder_lock(plan.folder / RUNS):  # commands that do other parts write the same file
        plan.save()
    jobs = {name: RunJob(plan, name) for name in plan.missing()}
    view = begin(tuple(jobs))
    try:
        do_runs(jobs, options, view, locks)
    except RunsFailed as error:
        rest = plan.finished({policy: why for (policy, _), why in error.whys.items()})
        if not rest.comparison.policies:
            raise
        return rest, error
    finally:
        view.close()
    if plan.part and not (whole := whole_plan_in(plan.folder)).missing():
        return whole, None
    return plan, None


def may_run_elsewhere(plan: ComparisonPlan) -> bool:
    """Whether other processes can do these runs.

    The command must be installed, and able to load every kind, term, merge rule, choice policy, module, loss.
    """
    scenarios = [of_policy(plan.scenario, policy) for policy in plan.comparison.policies]
    kinds = {kind.name: kind.strategy for scenario in scenarios for kind in scenario.task.kinds}
    own: list[type[Plugin]] = [type(policy_named(scenario.choose)) for scenario in scenarios]
    own += [type(scenario.task.drawing) for scenario in scenarios]
    own += [type(rule) for scenario in scenarios if (rule := scenario.task.server.own_rule) is not None]
    return (
        has_command()
        and all(map(is_portable, plan.scenario.own_code))
        and all(map(registry.is_portable, kinds.values()))
        and all(map(registry.is_loadable, own))
    )


def do_runs(
    jobs: Mapping[RunName, RunJob], options: CompletionOptions, view: ProgressView, locks: tuple[int, ...]
) -> None:
    """Does these runs, of one comparison or several, in other processes or here; the view gets their names.

    If a run fails the others continue; then RunsFailed is raised. Raises CallbackError at once.
    """
    if jobs and options.here:
        _run_here(jobs, options.run, view)
    elif jobs:
        run_jobs(jobs, _processes(len(jobs), options, locks), view)


def _processes(runs: int, options: CompletionOptions, locks: tuple[int, ...]) -> ProcessOptions:
    request = options.run.executor
    parallel = min(options.parallel or usable_cores(), runs)
    workers = request.workers or max(1, usable_cores() // parallel)
    arguments = ["--executor", request.name, "--workers", str(workers)]
    if request.address:
        arguments += ["--address", request.address]
    if options.run.keep_models:
        arguments += ["--keep-models", str(options.run.keep_models)]
    for tracker in options.run.trackers:
        arguments += ["--track", tracker]
    return ProcessOptions(tuple(arguments), parallel, workers, locks)


def _run_here(jobs: Mapping[RunName, RunJob], options: RunOptions, view: ProgressView) -> None:
    whys: dict[tuple[str, int], str] = {}
    cause: Exception | None = None
    for name, job in jobs.items():
        why = ""
        try:
            perform(job.plan.scenario, job.name, job.folder, options, ProgressReporter(_reporter(view, name)))
        except CallbackError:
            raise
        except (SimulationError, AggregatorError, ModelError, KindError) as error:
            why = str(error)
            whys[name.policy, name.seed] = why
            cause = cause or error
        view.ended(name, why)
    if whys:
        raise RunsFailed(whys) from cause


def _reporter(view: ProgressView, name: RunName) -> Callable[[Message], None]:
    def tell(message: Message) -> None:
        if isinstance(message, RoundDone):
            view.moved(name, message)
        elif isinstance(message, UpdatesTrained):
            view.working(name, message)

    return tell


PACKAGES = ("device-runtime", "numpy", "onnxruntime", "torch", "ray")


@dataclass(frozen=True)
class RunOptions:
    """The wanted executor.

    `callbacks` are called in this process, in this order; then `trackers`, by the names of `tracker_named`.
    keep_models: keep the model of every so many-th round; 0: of none.
    `load`: as in `prepare`. `turn`: the run's number among those at work, which take the machine's GPUs in
    turn; None: it may use them all.
    """

    executor: ExecutorRequest
    callbacks: tuple[Callback, ...] = ()
    trackers: tuple[str, ...] = ()
    load: Load = data_sets.load
    turn: int | None = None
    keep_models: int = 0


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
    prepared = prepare(own, name.seed, how.load)
    if how.turn is not None and how.executor.name != "ray":  # a cluster gives its workers their GPUs
        inputs = prepared.inputs
        prepared = replace(prepared, inputs=replace(inputs, engine=in_turn(inputs.engine, how.turn)))
    files = RunFiles(folder, lineage(own, name.seed), keep_models=how.keep_models)
    own = prepared.scenario  # with the members of its family
    used: list[str] = []
    try:
        done = files.checkpoint.round if files.checkpoint else 0
        calls.started(StartedRun(name.policy, name.seed, msgspec.to_builtins(own), folder, done + 1))

        def executor(inputs: ExecutorInputs) -> Executor:
            runner = choice.make(inputs, how.executor, [kind.strategy for kind in own.task.kinds])
            used.append(runner.name)
            return runner

        def keep(newest: Checkpoint) -> None:
            files.keeper.take(newest)
            calls.serves(newest.served)

        observers = CombinedObserver(calls, files, observer)
        draws = own.task.draw != UNIFORM and files.checkpoint is not None
        asks = tuple(read(folder / ASKS, AskRecord)) if draws else ()
        served = simulate(prepared, executor, observers, ResumeOptions(files.checkpoint, keep, asks))
        files.evaluated(evaluations(prepared, served))
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
    kinds = [kind for kind in kinds if not inapplicable_reason(kind, inputs.bundle.manifest)]
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
