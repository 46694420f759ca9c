"""Training jobs of simulated devices, the Executor interface, and the plain executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol

import numpy as np

from device_runtime.models.available_engines.available import open_model
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.names import EngineSettings
from device_runtime.models.bundles.tensors import Tensors, check
from device_runtime.models.bundles.weights import generator_of
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.errors import TensorError
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.errors import ExecutorError
from device_runtime.strategies.errors import OwnCodeError
from device_runtime.strategies.interface.device_half import NO_TENSORS, Run, Update
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.plugins import own_code
from device_runtime.strategies.statistics import kind_statistics


@dataclass(frozen=True)
class ExecutorInputs:
    """The input of every executor: the bundle, its family by name, the devices' samples, the engine."""

    bundle: Bundle
    clients: Clients
    engine: EngineSettings = field(default_factory=EngineSettings)
    family: Mapping[str, Bundle] = field(default_factory=dict)

    @property
    def bundles(self) -> dict[str, Bundle]:
        """All bundles by member; the main one is ""."""
        return {"": self.bundle, **self.family}

    def of(self, member: str) -> Bundle:
        """The bundle of a member of the family; "" is the main one.

        Raises ExecutorError for an unknown member.
        """
        if not member:
            return self.bundle
        if member not in self.family:
            members = ", ".join(self.family) or "none"
            raise ExecutorError(f"the family has no member {member!r}; it has {members}")
        return self.family[member]


def base_key(number: int, member: str = "") -> str:
    """The key of the base that round `number` distributes: of the main model, or of a member."""
    return f"{number}/{member}" if member else f"{number}"


def aside_key(number: int) -> str:
    """The key of the tensors that round `number` sends with the bases; no member has this name."""
    return f"{number}//aside"


@dataclass(frozen=True)
class TrainingJob:
    """Device number `device`, called `name`, trains `strategy` from the base model with key `base`.

    seed: the round's, shared by its devices.
    memory: the device's strategy state of this kind.
    aside: the key of the tensors sent with the base; empty where there are none.
    rare: as in Run.
    """

    device: int
    name: str
    strategy: AnyStrategy
    seed: int
    base: str
    memory: Tensors = field(default_factory=lambda: NO_TENSORS, repr=False, compare=False)
    aside: str = ""
    rare: tuple[int, ...] = ()

    @property
    def round(self) -> int:
        """The round that distributed the job's base."""
        return int(self.base.partition("/")[0])


@dataclass(frozen=True)
class FailedJob:
    """A job whose training diverged, or whose own kind failed, which a real device would notice itself."""

    why: str


Result = Update | FailedJob


class Executor(Protocol):
    """Trains many devices. Equal jobs give equal results, whatever other jobs run at the same time."""

    @property
    def name(self) -> str:
        """The name on the command line, with the number of workers: "processes (2)"."""

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        """Yields the result of each job, in the order of `jobs`; `bases` has their `base` and `aside`.

        The tensors of a result are valid until the next result is asked for; the caller owns its memory.
        Raises ModelError for a bundle that cannot do a job, ExecutorError when the workers have died.
        """

    def close(self) -> None:
        """Ends the workers and frees memory. May be called twice."""


def train(
    model: DeviceModel, inputs: ExecutorInputs, job: TrainingJob, aside: Tensors = NO_TENSORS
) -> Result:
    """Does one job by the device's own code; `model`, of the strategy's member, holds the job's base already.

    Whether it meets the deadline was decided before.
    """
    data = inputs.clients.local(job.device, model.manifest.input)
    try:
        with own_code(type(job.strategy)):
            update = kind_statistics.train(job.strategy, model, data, run_of(job, aside))
            check(update.tensors, kind_statistics.expected(job.strategy, model.manifest))
    except (TensorError, OwnCodeError) as error:
        return FailedJob(str(error))
    variant = job.strategy.variant
    return update if update.variant == variant else replace(update, variant=variant)


def run_of(job: TrainingJob, aside: Tensors = NO_TENSORS) -> Run:
    """The `Run` of a job; its noise depends on the job alone, so a repeated job draws the same."""

    def noise() -> np.random.Generator:
        return generator_of(f"{job.seed}:{job.name}:{job.strategy.name}:noise")

    return Run(
        job.seed,
        job.name,
        clock=lambda: 0.0,
        upload_at=inf,
        memory=job.memory,
        aside=aside,
        noise=noise,
        round=job.round,
        rare=job.rare,
    )


class PlainExecutor:
    """Trains one device after another in this process; the reference for all other executors."""

    name = "plain"

    def __init__(self, inputs: ExecutorInputs) -> None:
        """Raises EngineError, BundleError."""
        self._inputs = inputs
        self._models: dict[str, DeviceModel] = {"": open_model(inputs.bundle, inputs.engine)}
        self._loaded: dict[str, Tensors] = {}

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[TrainingJob]) -> Iterator[Result]:
        for job in jobs:
            model = self._holding(job.strategy.member, bases[job.base])
            aside = bases[job.aside] if job.aside else NO_TENSORS
            yield with_own_memory(train(model, self._inputs, job, aside))

    def _holding(self, member: str, base: Tensors) -> DeviceModel:
        """The member's model with this base; loads only new tensors.

        A tensor that no round has changed is the same array.
        """
        if member not in self._models:
            self._models[member] = open_model(self._inputs.of(member), self._inputs.engine)
        model, current = self._models[member], self._loaded.get(member, NO_TENSORS)
        if base is not current:
            model.load({name: value for name, value in base.items() if value is not current.get(name)})
            self._loaded[member] = base
        return model

    def close(self) -> None:
        for model in self._models.values():
            model.unload()


def with_own_memory(result: Result) -> Result:
    """The result with a copy of its memory, which no engine changes later."""
    if isinstance(result, FailedJob) or result.memory is None:
        return result
    return replace(result, memory={name: value.copy() for name, value in result.memory.items()})
