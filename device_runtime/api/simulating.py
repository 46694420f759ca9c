"""Simulates a federated run of a fleet, under one policy or several: what `device-runtime simulate` does."""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from device_runtime import own_files
from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.closing import straggler_share
from device_runtime.aggregator.tasks.kind_settings import KindSettings
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.selection.choose import ChoicePolicy
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.networks.own import is_portable, own_function, own_network, source_of
from device_runtime.models.training.metrics import Metric, metric_source
from device_runtime.profiles.fleets import fleet as fleets
from device_runtime.profiles.fleets.fleet import FleetSpec
from device_runtime.simulation.compare.completing import (
    CompletionOptions,
    RunOptions,
    check_runs,
    complete,
    may_run_elsewhere,
    working_in,
)
from device_runtime.simulation.compare.plan import ComparisonPlan, WantedRuns, counted_seeds, planned
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.data.loading import LastDataSet
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.executors.choice import ExecutorRequest
from device_runtime.simulation.report.folders import side_by_side
from device_runtime.simulation.rounds.callbacks import Callback
from device_runtime.simulation.scenarios import scenario as scenarios
from device_runtime.simulation.scenarios.scenario import Scenario
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.kinds import registry

from .exporting import export_for
from .progress import view_of
from .result import ComparedFolders, SimulationResult

log = logging.getLogger(__name__)

Kind = str | AnyStrategy | tuple[str, Mapping[str, Any]] | KindSettings
"""A kind of update: its name, an instance of its class, a name with settings, or an entry of a task."""
Policy = str | type[ChoicePolicy]
"""A policy: its name, or a class of one's own by which devices choose among updates."""
PRESET = "digits"
"""The task that is simulated if none is given."""
FLEET = "mixed"
"""The fleet of a task that is given none."""


def simulate(
    task: Scenario | Task | Bundle | str | Path | Callable[..., Any] = PRESET,
    *,
    fleet: FleetSpec | str | Path | None = None,
    data: DataSpec | None = None,
    policies: Sequence[Policy] | None = None,
    kinds: Iterable[Kind] | None = None,
    seeds: int | Sequence[int] | None = None,
    devices: int | None = None,
    rounds: int | None = None,
    deadline: float | str | None = None,
    module: Callable[..., Any] | str | None = None,
    loss: Callable[..., Any] | str | None = None,
    device: str | None = None,
    precision: str | None = None,
    metrics: Sequence[Metric] | None = None,
    callbacks: Sequence[Callback] = (),
    keep_models: int | None = None,
    run_dir: str | Path | None = None,
    executor: ExecutorRequest | str = "auto",
    parallel: int | None = None,
    progress: bool | None = None,
) -> SimulationResult:
    """Simulates a fleet on virtual time, with real training; the same arguments give the same figures.

    task: what is learnt: a Task; a bundle, its folder, or the name of one that is shipped; a Scenario, its
    file, or the name of a preset; or an nn.Module, which is exported for `data`: samples go to it as they
    are, class numbers are trained by cross-entropy, columns by mse (`dr.export` has more settings, and other
    losses). The arguments below stand over those of a scenario.
    fleet: the devices: a Fleet, a TOML file or the name of a preset (default: mixed).
    data: the samples, as `device_runtime.data` names them (default: digits).
    policies: ways to run the task, to be compared: mixed (every device sends the richest update that it can
    afford), fedavg, heterofl and other systems, the name of a kind, or the class of an own choice policy
    (default: mixed).
    kinds: the kinds of update that the policy `mixed` offers, the preferred first (default: the task's).
    seeds: run with seeds 0 to `seeds` - 1 (default: 1), or with those listed: this call then does a part of a
    comparison, in a folder of its own or in one with others, which `compare` joins.
    devices: in the fleet (default: 100).
    rounds: of the task (default: as a Task or Scenario says, 20 of a bundle).
    deadline: of a round, in seconds, or such as "30% stragglers": the seconds are found for the fleet, and
    logged (default: as a Task or Scenario says).
    module: the network of a bundle of own code, by which torch trains it, on a GPU too: the nn.Module that
    was exported, a function that gives it, or "FILE.py:NAME" (or "PACKAGE.MODULE:NAME"). Without a task it is
    exported, as an nn.Module in place of one is. Only a text means the same to other processes: all runs and
    devices of a module or function are trained in this one.
    loss: of a network that is exported here, as in `dr.export`. Of a bundle with a loss of one's own, its
    function, by which torch trains it: the function itself, which only this process has, or "FILE.py:NAME".
    device: cpu or, by torch, cuda or cuda:N (default: as a Scenario says, cpu).
    precision: of training: float32 or, by torch, bf16, on a GPU tf32 (default: as a Scenario says, float32).
    metrics: further ones, of the served model: names such as "f1-macro", "FILE.py:NAME", or functions of
    predictions and targets, or of (predict, x, y), that return a number, or numbers by name.
    callbacks: are called in this process, where all runs are then done.
    keep_models: keep the model that every so many-th round serves, for `weights` and `evaluate` of a run.
    run_dir: keep the runs here, and go on with those that were stopped; None: they go with the result.
    executor: how the devices' models are trained: auto, plain, batched, processes or ray.
    parallel: runs at a time, each in a process of its own (default: as many as usable cores). One run alone
    is done in this process, and so are kinds of update that only this process knows.
    progress: None shows bars on a terminal and in a notebook; False shows nothing.

    A policy that fails is left out with a warning (`failed` of the result). Raises ScenarioError for
    arguments that contradict each other, DataSetError, ModelError, ProfileError, TaskError, SimulationError
    where every policy fails, CallbackError, and OSError if a file cannot be written.

    >>> result = simulate("digits", fleet="phones", policies=["mixed", "fedavg"], devices=10, rounds=2)
    >>> [run.accuracy.shape for run in result.runs]
    [(2,), (2,)]
    """
    if own_files.is_loading():
        raise ScenarioError(
            "simulate was called while another process loaded this file for its classes: "
            'put the call below `if __name__ == "__main__":`'
        )
    trained_by = TorchSettings(device, precision)
    code = exported(OwnCode(task, module, loss), data, trained_by, progress is not False)
    request = executor if isinstance(executor, ExecutorRequest) else ExecutorRequest(executor)
    run = RunOptions(request, tuple(callbacks), keep_models=count_of("keep_models", keep_models) or 0)
    scenario = scenario_of(
        code.task, fleet=fleet, data=data, devices=devices, rounds=rounds, deadline=deadline, kinds=kinds
    )
    named = None if policies is None else tuple(dict.fromkeys(_names(policies)))
    selection = WantedRuns(
        policies=named,
        seeds=seeds_of(seeds),
        command="device_runtime.simulate(..)",
        usual=("mixed",),
        part=seeds is not None and not isinstance(seeds, int),
    )
    folder = Path(run_dir) if run_dir is not None else Path(tempfile.mkdtemp(prefix="device-runtime-"))
    try:
        with ExitStack() as named_here:
            scenario = named_here.enter_context(trained_by_code(scenario, code, trained_by))
            if metrics is not None:
                measured = tuple(named_here.enter_context(metric_source(each)) for each in metrics)
                task = msgspec.structs.replace(scenario.task, metrics=measured)
                scenario = msgspec.structs.replace(scenario, task=task)
            plan = planned(scenario, selection, folder)
            done = _completed(plan, run, count_of("parallel", parallel), progress)
        return SimulationResult(done, temporary=run_dir is None)
    except BaseException:
        if run_dir is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def scenario_of(
    task: Scenario | Task | Bundle | str | Path,
    *,
    fleet: FleetSpec | str | Path | None = None,
    data: DataSpec | None = None,
    devices: int | None = None,
    rounds: int | None = None,
    deadline: float | str | None = None,
    kinds: Iterable[Kind] | None = None,
) -> Scenario:
    """The scenario of these arguments of `simulate`. Raises as `simulate` does.

    >>> scenario_of("digits-wrn-10-1", fleet="phones", devices=20).devices
    20
    """
    scenario = _scenario(task)
    changes: dict[str, Any] = {}
    if fleet is not None:
        changes["fleet"] = fleet if isinstance(fleet, FleetSpec) else fleets.load(fleet)
    if data is not None:
        if not isinstance(data, DataSpec):
            raise ScenarioError(f"data is {data!r}, expected samples as device_runtime.data names them")
        changes["data"] = data
    if count_of("devices", devices) is not None:
        changes["devices"] = devices
    new_task = scenario.task if kinds is None else scenario.task.naming(offered(kinds))
    if count_of("rounds", rounds) is not None:
        new_task = msgspec.structs.replace(new_task, rounds=rounds)
    if isinstance(deadline, str):
        changes["stragglers"] = _share(deadline)
    elif deadline is not None:
        new_task = msgspec.structs.replace(new_task, round_deadline_s=float(deadline))
        changes["stragglers"] = None
    if new_task is not scenario.task:
        changes["task"] = new_task
    return msgspec.structs.replace(scenario, **changes) if changes else scenario


def offered(kinds: Iterable[Kind]) -> tuple[KindSettings, ...]:
    """The kinds as entries of a task.

    A name gets the usual settings of its round, overridden by those that stand with it. The class of an
    instance is registered, so that its name is known from then on. Raises TaskError for an unknown name and
    for wrong settings.

    >>> [kind.name for kind in offered(["full", ("few-shot", {"epochs": 2})])]
    ['full', 'few-shot']
    """
    entries = [_loaded(kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    for kind in entries:
        if isinstance(kind, type):
            raise TaskError(f"{kind.__name__} is a class, expected an instance: {kind.__name__}()")
        if not isinstance(kind, str | tuple | KindSettings):
            registry.register(type(kind))
    return tuple(_entry(kind, mixed=len(entries) > 1) for kind in entries)


def compare(*folders: str | Path, apart: bool = False) -> ComparedFolders:
    """Compares the finished runs of several folders on common terms, such as the earliest end of all.

    Folders of the same scenario are parts of one comparison, and joined by policy and seed; apart: each is
    shown by itself. Raises ScenarioError for a folder that is not of a simulation, where nothing is finished
    or no folder is given, and for a run that two parts have and that differs between them.

    >>> for policy in ("few-shot", "class-means"):
    ...     _ = simulate(policies=[policy], devices=10, rounds=1, run_dir=f"runs/{policy}")
    >>> compare("runs/few-shot", "runs/class-means").policies
    ('few-shot', 'class-means')
    """
    if not folders:
        raise ScenarioError("compare needs the folders of simulations")
    comparison = side_by_side([Path(folder) for folder in folders], apart)
    return ComparedFolders(comparison, comparison.unfinished)


def _completed(
    plan: ComparisonPlan, run: RunOptions, parallel: int | None, progress: bool | None
) -> ComparisonPlan:
    """Does the missing runs, and returns the plan without policies that failed."""
    alone = len(plan.missing()) < 2
    here = alone or bool(run.callbacks) or not may_run_elsewhere(plan)
    own = [source[1:] for source in plan.scenario.own_code if not is_portable(source)]
    if own and not alone:
        log.warning("only this process has %s: it does all runs, one after another", ", ".join(own))
    if here:
        run = replace(run, load=LastDataSet().load)
    check_runs(plan, run)
    options = CompletionOptions(run, parallel, here)
    parts = [plan.of(name) for name in plan.names] if plan.part else []
    with working_in(plan.folder, parts) as locks:
        rounds = plan.scenario.task.rounds
        done, failed = complete(plan, options, lambda missing: view_of(progress, missing, rounds), locks)
    if failed is not None:
        warnings.warn(f"left out: {', '.join(done.without)} ({failed})", RuntimeWarning, stacklevel=3)
    return done


@dataclass(frozen=True)
class OwnCode:
    """What `simulate` trains: a task, or a network in its place, and code for torch."""

    task: Any
    module: Callable[..., Any] | str | None
    loss: Callable[..., Any] | str | None


@dataclass(frozen=True)
class TorchSettings:
    """The wanted device and precision of training; None: as a scenario says."""

    device: str | None
    precision: str | None

    @property
    def needed(self) -> bool:
        """Whether torch alone has them."""
        return EngineSettings(precision=self.precision or "float32", device=self.device or "cpu").for_torch


@contextmanager
def trained_by_code(scenario: Scenario, code: OwnCode, settings: TorchSettings) -> Iterator[Scenario]:
    """The scenario with this code and these settings, as long as the code can be looked up."""
    with source_of(code.module or "") as source, source_of(code.loss or "") as own_loss:
        over = {"module": source or None, "own_loss": own_loss or None}
        yield _on(scenario, over | {"place": settings.device, "precision": settings.precision})


def exported(code: OwnCode, data: DataSpec | None, settings: TorchSettings, progress: bool) -> OwnCode:
    """With the bundle that a network without a task is exported as.

    It is trained by torch where it is given as `module`, and where the settings need it. Raises
    ScenarioError, and as `export_for` does.
    """
    task, module, loss = code.task, code.module, code.loss
    torch = sys.modules.get("torch")
    alone = torch is not None and isinstance(task, torch.nn.Module)
    if not alone and (module is None or task != PRESET):
        return code
    if alone and module is not None:
        raise ScenarioError("task is a network, and module another one: leave one of them out")
    if data is None:
        raise ScenarioError(
            "a network of one's own needs data: data=device_runtime.data.arrays(x, y), or others"
        )
    with source_of(task if alone else module) as source:
        function = own_function(loss) if isinstance(loss, str) and ":" in loss else loss
        bundle = export_for(own_network(source, {}), data, function or "", progress)
    if alone and settings.needed:
        module = task
    return OwnCode(bundle, module, loss if module is not None and callable(function) else None)


def _on(scenario: Scenario, over: Mapping[str, str | None]) -> Scenario:
    """The scenario with those of these values that are given."""
    changes = {name: value for name, value in over.items() if value is not None}
    return msgspec.structs.replace(scenario, **changes)


def _scenario(task: Scenario | Task | Bundle | str | Path) -> Scenario:
    if isinstance(task, Scenario):
        return task
    if isinstance(task, Task):
        return Scenario(fleet=fleets.load(FLEET), task=task, name=task.name)
    if isinstance(task, Bundle):
        return _of_bundle(task.path)
    if not isinstance(task, str | Path):
        raise ScenarioError(
            f"task is {task!r}, expected a Task, a Scenario, a bundle, the name of one, or an nn.Module"
        )
    names = (*scenarios.preset_names(), *fleets.preset_names())
    if str(task) in names or Path(task).suffix == ".toml":
        return scenarios.load(task)
    return _of_bundle(task)


def _of_bundle(bundle: str | Path) -> Scenario:
    path = bundles.find_bundle(bundle)
    name = path.stem if path.is_file() else path.resolve().name
    task = Task(bundle=str(bundle), rounds=scenarios.ROUNDS)
    return Scenario(fleet=fleets.load(FLEET), task=task, name=name)


def _entry(kind: Kind, *, mixed: bool) -> KindSettings:
    if isinstance(kind, KindSettings):
        return kind
    if isinstance(kind, str):
        kind = kind, {}
    if isinstance(kind, tuple):
        settings = registry.in_mixed_round(*kind) if mixed else dict(kind[1])
        return KindSettings(name=kind[0], settings=settings)
    return KindSettings(name=kind.name, settings=registry.settings(kind))


def _loaded(kind: Kind) -> Kind:
    """The kind, by its name where it is named by its file or module: "mykinds.py:TopK"."""
    if isinstance(kind, str) and ":" in kind:
        return str(registry.load(kind).name)
    if isinstance(kind, tuple) and ":" in kind[0]:
        return str(registry.load(kind[0]).name), kind[1]
    return kind


def _names(policies: Sequence[Policy]) -> Sequence[str]:
    """The names of the policies; a class of one's own is registered, so that its name is known."""
    if isinstance(policies, str):
        return (policies,)
    if not policies:
        raise ScenarioError(f"policies is empty: expected some of {', '.join(scenarios.names())}")
    for policy in policies:
        if not isinstance(policy, str | type):
            raise ScenarioError(f"policies has {policy!r}, expected names, or classes of choice policies")
    return [policy if isinstance(policy, str) else str(registry.register(policy).name) for policy in policies]


def _share(deadline: str) -> float:
    """The share of stragglers that a deadline names. Raises ScenarioError."""
    share = straggler_share(deadline)
    if share is None:
        raise ScenarioError(f'deadline is {deadline!r}, expected seconds, or such as "30% stragglers"')
    return share


def seeds_of(seeds: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """The seeds as `WantedRuns` has them. Raises ScenarioError."""
    if seeds is None or isinstance(seeds, int):
        return count_of("seeds", seeds)
    listed = tuple(seeds)
    if not listed or not all(isinstance(seed, int) and seed >= 0 for seed in listed):
        raise ScenarioError(f"seeds is {seeds!r}, expected a number of seeds, or whole numbers from 0 on")
    return counted_seeds(listed)


def count_of(name: str, value: int | None) -> int | None:
    if value is not None and (not isinstance(value, int) or value < 1):
        raise ScenarioError(f"{name} is {value!r}, expected a whole number, 1 or more")
    return value
