"""The plain executor: one device after another, in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from models.engines import open_model
from models.tensors import Tensors

from .job import Job, Result, World, train


class Plain:
    """See `Executor`. What the others are held equal to."""

    name = "plain"

    def __init__(self, world: World) -> None:
        """Raises EngineError, BundleError."""
        self._world = world
        self._model = open_model(world.bundle, world.engine)
        self._loaded: Tensors = {}

    def run(self, bases: Mapping[int, Tensors], jobs: Sequence[Job]) -> Iterator[Result]:
        for job in jobs:
            self._load(bases[job.base])
            yield train(self._model, self._world, job)

    def _load(self, base: Tensors) -> None:
        """Only what is new: a tensor that no round has changed is the same array."""
        if base is not self._loaded:
            known = self._loaded
            self._model.load({name: value for name, value in base.items() if value is not known.get(name)})
            self._loaded = base

    def close(self) -> None:
        self._model.unload()
