"""One simulated run: a scenario, a seed, an executor, and whoever watches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from aggregator.errors import AggregatorError
from aggregator.feasible import check_kinds
from models import bundle as bundles
from models.bundle import Bundle
from models.engines import EngineWish
from models.tensors import Tensors

from . import data as data_sets
from .asking import Asking, Stock
from .bases import Bases
from .checkpoint import Checkpoint
from .clients import Clients
from .data import DataSet
from .devices import Devices
from .director import Director, Parts
from .errors import ScenarioError
from .evaluating import Evaluator
from .executors.job import Executor, World
from .executors.plain import Plain
from .learning import Learning, Tools
from .ledger import Ledger
from .scenario import Scenario
from .watch import Nobody, Watch


@dataclass(frozen=True)
class Prepared:
    """A scenario with everything drawn for one seed."""

    scenario: Scenario
    seed: int
    world: World
    data: DataSet


@dataclass(frozen=True)
class Keeping:
    """How a run goes on after it was stopped: from `resume`; `keep` is given a checkpoint after each round.

    Rounds up to that of `resume` are gone through again without training, and nothing is told of them.
    """

    resume: Checkpoint | None = None
    keep: Callable[[Checkpoint], None] = lambda _: None


def prepare(scenario: Scenario, seed: int) -> Prepared:
    """Open the bundle, load the data, divide it. Raises ScenarioError, DataSetError, ModelError."""
    bundle = Bundle.open(bundles.find(scenario.task.bundle))
    data = data_sets.load(scenario.data, seed)
    labels = len(bundle.manifest.labels)
    if (top := int(data.train_y.max(initial=0))) >= labels:
        raise ScenarioError(f"the data has label {top}, bundle {bundle.manifest.name} has {labels}")
    parts = data_sets.divide(data, scenario.data, scenario.devices, seed)
    clients = Clients.of(data.train_x, data.train_y, parts)
    world = World(bundle, clients, EngineWish(engine=scenario.engine, device=scenario.place))
    return Prepared(scenario, seed, world, data)


def simulate(
    prepared: Prepared,
    executor: Callable[[World], Executor] = Plain,
    watch: Watch | None = None,
    keeping: Keeping | None = None,
) -> Tensors:
    """All rounds; the model that the last one serves. The same scenario and seed give the same bytes.

    Raises SimulationError, and what `prepare` raises.
    """
    scenario, seed, world = prepared.scenario, prepared.seed, prepared.world
    task, manifest = msgspec.structs.replace(scenario.task, seed=seed), world.bundle.manifest
    try:
        check_kinds(task, manifest)
    except AggregatorError as error:
        raise ScenarioError(str(error)) from None
    watch, keeping = watch or Nobody(), keeping or Keeping()
    resume = keeping.resume
    bases = Bases(world.bundle.weights(), manifest.weights.bytes)
    devices = Devices(scenario.fleet.draw(scenario.devices, seed), world.clients, manifest, scenario.slow)
    ledger = Ledger(watch, manifest.graphs["forward"].flops, resume.round if resume else 0)
    evaluate = Evaluator(world.bundle, prepared.data, scenario.eval_every, task.rounds)
    trains = executor(world)
    try:
        tools = Tools(manifest, trains, evaluate, ledger, watch, keeping.keep)
        learning = Learning(task, bases, tools, resume)
        asking = Asking(task, Stock(devices, bases, len(world.bundle.packed())), seed)
        Director(task, devices.names(), Parts(asking, learning, ledger)).run()
    finally:
        trains.close()
    return learning.served
