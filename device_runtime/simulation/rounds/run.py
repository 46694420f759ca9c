"""One simulated run: prepares a scenario for a seed and runs all of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from device_runtime.aggregator.errors import AggregatorError, TaskError
from device_runtime.aggregator.merging.merge_round import MergeTools as ServerSide
from device_runtime.aggregator.merging.merge_round import open_family, samples
from device_runtime.aggregator.rounds.run import first_base
from device_runtime.aggregator.tasks.feasible import (
    check_kinds,
    members_called,
    with_members,
    with_possible_head,
)
from device_runtime.aggregator.tasks.task import Task
from device_runtime.device.selection.choose import MAIN, policy_named
from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.networks.own import absolute
from device_runtime.models.training.metrics import FurtherMetrics
from device_runtime.profiles.fleets.fleet import Fleet
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.clock.devices import FleetState
from device_runtime.simulation.clock.sampling import DeviceSampler, FleetInputs
from device_runtime.simulation.clock.selection import FleetSelection, selection
from device_runtime.simulation.data import DataSet, DataSpec
from device_runtime.simulation.data.loading import Clients, prepared_targets
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.executors.job import Executor, ExecutorInputs, PlainExecutor
from device_runtime.simulation.history.bases import BaseHistory, ShippedModel
from device_runtime.simulation.history.checkpoint import Checkpoint
from device_runtime.simulation.history.records import AskRecord, NullObserver, RunObserver
from device_runtime.simulation.scenarios.scenario import Scenario
from device_runtime.strategies.interface.device_half import LocalData

from .learning import LearningTools, ModelState, RoundEvaluator
from .ledger import RunLedger
from .masked_sums import SimulatedSums
from .simulation_loop import SimulationLoop


@dataclass(frozen=True)
class PreparedRun:
    """A scenario with everything drawn for one seed.

    `generic` are the samples of the generic set, which no device holds. `test_parts` are the devices' own
    test samples, on which they do not train; None where they have none.
    """

    scenario: Scenario
    seed: int
    inputs: ExecutorInputs
    data: DataSet
    generic: LocalData | None = None
    test_parts: Clients | None = None


@dataclass(frozen=True)
class ResumeOptions:
    """The checkpoint from which a run resumes, and the receiver of new ones.

    `asks`: those of the rounds up to that of `resume`, for drawing policies.
    `keep` is called with a checkpoint after each round. Rounds up to that of `resume` are replayed without
    training, and are not reported to the observer.
    """

    resume: Checkpoint | None = None
    keep: Callable[[Checkpoint], None] = lambda _: None
    asks: Iterable[AskRecord] = ()


Load = Callable[[DataSpec, int, Bundle], DataSet]
"""Loads the data of a seed, as `simulation.data.load` does."""


def prepare(scenario: Scenario, seed: int, load: Load = data_sets.load) -> PreparedRun:
    """Opens the bundles, loads the data and divides it among the devices.

    Raises ScenarioError, DataSetError, ModelError.
    """
    bundle = Bundle.open(bundles.find_bundle(scenario.task.bundle))
    if scenario.module and (source := bundle.manifest.source) is not None:
        says = f"bundle {bundle.manifest.name} says which network it was made from ({source.network})"
        raise ScenarioError(f"module is {scenario.module}, but {says}: leave the module out")
    if scenario.own_loss and not (target := bundle.manifest.target).own:
        says = f"bundle {bundle.manifest.name} has loss {target.description}"
        raise ScenarioError(f"own_loss is {scenario.own_loss}, but {says}: leave it out")
    if tables := FurtherMetrics(scenario.task.metrics, bundle.manifest.target).tables:
        why = "is a table, which rounds do not have: `evaluate` of a finished run gives it"
        raise ScenarioError(f"metric {tables[0]} {why}")
    try:
        family = open_family(scenario.task, bundle)
        scenario = _with_members(scenario, tuple(family))
    except TaskError as error:
        raise ScenarioError(str(error)) from None
    data = load(scenario.data, seed, bundle)
    fleet = scenario.fleet.draw(scenario.devices, seed)
    parts = data_sets.divide_fleet(data, scenario.data, fleet)
    y = prepared_targets(data, bundle.manifest, data.train_y)
    clients, test_parts = Clients.of(data.train_x, y, parts), None
    if scenario.data.device_test_share:
        clients, test_parts = clients.split(scenario.data.device_test_share)
    if bundle.manifest.target.compared == "input":  # anomalies are evaluated, not trained on
        clients = clients.of_class(0)
    own = absolute(scenario.module), absolute(scenario.own_loss)
    engine = EngineSettings(
        scenario.engine, scenario.precision, device=scenario.place, module=own[0], loss=own[1]
    )
    inputs = ExecutorInputs(bundle, clients, engine, family)
    return PreparedRun(scenario, seed, inputs, data, _generic(scenario, data, bundle), test_parts)


def _with_members(scenario: Scenario, names: tuple[str, ...]) -> Scenario:
    """The scenario with the names of the bundles of its family, as kinds and groups train them.

    Raises TaskError.
    """
    task = scenario.task
    if not names:
        return msgspec.structs.replace(scenario, task=with_members(task, names))
    groups = {
        name: msgspec.structs.replace(
            group, members=members_called(group.members, task, names, f"groups.{name}.members")
        )
        for name, group in scenario.fleet.groups.items()
    }
    fleet = msgspec.structs.replace(scenario.fleet, groups=groups)
    return msgspec.structs.replace(scenario, task=with_members(task, names), fleet=fleet)


def _generic(scenario: Scenario, data: DataSet, bundle: Bundle) -> LocalData | None:
    """The generic set: read from a file, or held out of the data. Raises ScenarioError."""
    path = scenario.task.generic
    if path is None:
        generic = data.generic
        return None if generic is None else LocalData(bundle.manifest.input.prepare(generic.x), generic.y)
    try:
        return samples(path, bundle, "generic set")
    except TaskError as error:
        raise ScenarioError(str(error)) from None


def simulate(
    prepared: PreparedRun,
    executor: Callable[[ExecutorInputs], Executor] = PlainExecutor,
    observer: RunObserver | None = None,
    keeping: ResumeOptions | None = None,
) -> Tensors:
    """Runs all rounds and returns the model that the last one serves.

    The same scenario and seed give the same bytes.

    Raises SimulationError and the errors of `prepare`.
    """
    scenario, seed, inputs = prepared.scenario, prepared.seed, prepared.inputs
    task = with_possible_head(msgspec.structs.replace(scenario.task, seed=seed), inputs.bundle.manifest)
    try:
        check_task(scenario.task, prepared)
    except AggregatorError as error:
        raise ScenarioError(str(error)) from None
    models = inputs.bundles
    manifests = {member: bundle.manifest for member, bundle in models.items()}
    observer, keeping = observer or NullObserver(), keeping or ResumeOptions()
    resume = keeping.resume
    server = ServerSide(models, prepared.generic, inputs.engine)
    weights, carried = first_base(task, models, server)
    bases = BaseHistory(
        {member: ShippedModel.of(bundle) for member, bundle in models.items()}, weights, carried
    )
    fleet, selected = selected_devices(task, prepared)
    devices = FleetState(fleet, inputs.clients, manifests, scenario.slow)
    flops, replayed = manifests[MAIN].graphs["forward"].flops, resume.round if resume else 0
    ledger = RunLedger(observer, flops, replayed, keeping.asks)
    evaluate = RoundEvaluator(
        inputs.bundle,
        prepared.data,
        scenario.eval_every,
        task.rounds,
        inputs.engine,
        task.metrics,
        _held_out(inputs, selected),
    )
    trains = executor(inputs)
    try:
        sums = SimulatedSums.of(task, inputs.clients, manifests)
        tools = LearningTools(
            server, trains, evaluate, ledger, observer, keeping.keep, sums, evaluate.of_held_out
        )
        learning = ModelState(task, bases, carried, tools, resume)
        bundled = sum(len(bundle.packed()) for bundle in models.values())
        policy, terms = policy_named(scenario.choose), sums.upload_terms if sums else None
        drawn_from = FleetInputs(devices, bases, bundled, policy, terms, selected, ledger.history.before)
        SimulationLoop(task, fleet, DeviceSampler(task, drawn_from, seed), learning).run()
    finally:
        trains.close()
    return learning.served


def selected_devices(task: Task, prepared: PreparedRun) -> tuple[Fleet, FleetSelection | None]:
    """The fleet, and which of its devices train and are held out; None: all train. Raises ScenarioError."""
    scenario, clients = prepared.scenario, prepared.inputs.clients
    fleet = scenario.fleet.draw(scenario.devices, prepared.seed)
    selected = selection(task.participants, fleet, lambda device: len(clients.indices(device)))
    if selected is not None and task.min_contributions > selected.count:
        raise ScenarioError(
            f"min_contributions is {task.min_contributions}, and only {selected.count} devices train"
        )
    return fleet, selected


def _held_out(inputs: ExecutorInputs, selected: FleetSelection | None) -> LocalData | None:
    """The samples of the devices that are held out, prepared for the bundle; None without any."""
    if selected is None or not len(selected.held_out):
        return None
    clients = inputs.clients
    rows = np.concatenate([clients.indices(device) for device in selected.held_out.tolist()])
    x = inputs.bundle.manifest.input.prepare(np.asarray(clients.x)[rows])
    return LocalData(x, clients.y[rows]) if len(rows) else None


def check_task(task: Task, prepared: PreparedRun) -> None:
    """Raises TaskError for a task that cannot be done with these models and generic samples.

    And ScenarioError for one in which none of the devices would train.
    """
    inputs = prepared.inputs
    selected_devices(task, prepared)
    if task.generic is None and prepared.generic is not None:
        task = msgspec.structs.replace(task, generic="[data]")
    family = {member: bundle.manifest for member, bundle in inputs.family.items()}
    task = with_members(task, tuple(family))
    check_kinds(task, inputs.bundle.manifest, family)
