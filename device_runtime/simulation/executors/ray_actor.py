"""A worker on a node of a Ray cluster. Bytes, numbers and numpy arrays come in and go out, nothing else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Kind
from device_runtime.models.bundles.bundle import Bundle, unpack
from device_runtime.models.engines.available import EngineWish, open_model
from device_runtime.models.engines.base import DeviceModel
from device_runtime.simulation.clients import Clients
from device_runtime.strategies import registry
from device_runtime.strategies.kind import AnyStrategy

from . import packing, replies
from .job import Failed, World, train
from .packing import Layout, PackedJob
from .processes_memory import Shared

Bytes = NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)


class Opening(msgspec.Struct, frozen=True, array_like=True):
    """What a worker opens: an engine for the bundle, and the names of the bundles beside it."""

    engine: EngineWish
    family: tuple[str, ...]


class Errand(msgspec.Struct, frozen=True, array_like=True):
    """A job by itself: its number in the run, and its kind of update. `base` is a key of its content.

    `memory` and `aside` say how these lie.
    """

    number: int
    kind: Kind
    job: PackedJob
    base: int
    memory: Layout = ()
    aside: Layout = ()


Answer = tuple[bytes, Bytes, Bytes]
"""A reply, the tensors of its result, and its memory."""


class RayWorker:
    """One engine on one core for each model of the family, and the base model that it has loaded."""

    def open(self, text: bytes, *arrays: NDArray[Any]) -> bytes:
        """An Opening, the four arrays of Clients, and the bundles' zips; gives Ready or Broke."""
        try:
            opening = msgspec.msgpack.decode(text, type=Opening)
            self._shared: list[Shared] = []
            main, *others = [self._opened(bundle) for bundle in arrays[4:]]
            family = dict(zip(opening.family, others, strict=True))
            self._world = World(main, Clients(*arrays[:4]), opening.engine, family)
            self._models = {"": open_model(main, opening.engine)}
        except Exception as error:
            return packing.pack(replies.broke(-1, error))
        self._strategies: dict[tuple[str, bytes], AnyStrategy] = {}
        self._loaded: dict[str, int] = {}
        return packing.pack(replies.Ready(os.getpid()))

    def do(self, text: bytes, base: Bytes, memory: Bytes, aside: Bytes) -> Answer:
        """An Errand, and what its job begins with."""
        errand = msgspec.msgpack.decode(text, type=Errand)
        try:
            strategy = self._strategy(errand.kind)
            model = self._holding(strategy.member, errand.base, base)
            job = packing.unpack_job(errand.job, strategy, packing.views(memory, errand.memory))
            result = train(model, self._world, job, packing.views(aside, errand.aside))
            reply = packing.pack(replies.headline(errand.number, result))
            if isinstance(result, Failed):
                return reply, NOTHING, NOTHING
            kept = NOTHING if result.memory is None else packing.joined(result.memory)
            return reply, packing.joined(result.tensors), kept
        except Exception as error:
            return packing.pack(replies.broke(errand.number, error)), NOTHING, NOTHING

    def _holding(self, member: str, key: int, base: Bytes) -> DeviceModel:
        """The model of this member with this base."""
        bundle = self._world.of(member)
        if member not in self._models:
            self._models[member] = open_model(bundle, self._world.engine)
        if self._loaded.get(member) != key:
            self._loaded.pop(member, None)
            self._models[member].load(packing.views(base, bundle.manifest.stored()))
            self._loaded[member] = key
        return self._models[member]

    def _opened(self, bundle: Bytes) -> Bundle:
        """Where nothing of it is left when this process is killed, if the system has such a place."""
        if hasattr(os, "memfd_create"):
            shared = Shared.make()
            self._shared.append(shared)
            shared.write(bundle, 0)
            return Bundle.open(f"/proc/self/fd/{shared.fd}")
        self._folder = getattr(self, "_folder", None) or tempfile.TemporaryDirectory(prefix="device-runtime-")
        return unpack(bundle.tobytes(), Path(tempfile.mkdtemp(dir=self._folder.name)) / "bundle")

    def _strategy(self, kind: Kind) -> AnyStrategy:
        key = kind.name, bytes(kind.settings)
        if key not in self._strategies:
            self._strategies[key] = registry.read(kind)
        return self._strategies[key]
