"""The plain executor: one device after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.available import open_model
from device_runtime.models.engines.base import DeviceModel
from device_runtime.strategies.training.device_half import NOTHING

from .job import Failed, Job, Result, World, train


class Plain:
    """See `Executor`. What the others are held equal to."""

    name = "plain"

    def __init__(self, world: World) -> None:
        """Raises EngineError, BundleError."""
        self._world = world
        self._models: dict[str, DeviceModel] = {"": open_model(world.bundle, world.engine)}
        self._loaded: dict[str, Tensors] = {}

    def run(self, bases: Mapping[str, Tensors], jobs: Sequence[Job]) -> Iterator[Result]:
        for job in jobs:
            model = self._holding(job.strategy.member, bases[job.base])
            aside = bases[job.aside] if job.aside else NOTHING
            yield _own(train(model, self._world, job, aside))

    def _holding(self, member: str, base: Tensors) -> DeviceModel:
        """Only what is new is loaded: a tensor that no round has changed is the same array."""
        if member not in self._models:
            self._models[member] = open_model(self._world.of(member), self._world.engine)
        model, known = self._models[member], self._loaded.get(member, NOTHING)
        if base is not known:
            model.load({name: value for name, value in base.items() if value is not known.get(name)})
            self._loaded[member] = base
        return model

    def close(self) -> None:
        for model in self._models.values():
            model.unload()


def _own(result: Result) -> Result:
    """With a memory that no engine changes later."""
    if isinstance(result, Failed) or result.memory is None:
        return result
    return replace(result, memory={name: value.copy() for name, value in result.memory.items()})
