"""A worker on a node of a Ray cluster. Bytes, numbers and numpy arrays come in and go out, nothing else."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from broker.messages import Kind
from models.bundle import Bundle, unpack
from models.engines import EngineWish, open_model
from simulation.clients import Clients
from strategies import registry
from strategies.kind import AnyStrategy

from . import packing
from .job import Failed, World, train
from .packing import PackedJob, Ready
from .processes_memory import Shared

Bytes = NDArray[np.uint8]
NOTHING: Bytes = np.empty(0, np.uint8)


class Errand(msgspec.Struct, frozen=True, array_like=True):
    """A job by itself: its number in the run, and its kind of update. `base` is a key of its content."""

    number: int
    kind: Kind
    job: PackedJob
    base: int


class RayWorker:
    """One engine on one core, and the base model that it has loaded."""

    def open(self, bundle: Bytes, engine: bytes, *clients: NDArray[Any]) -> bytes:
        """The bundle's zip, an EngineWish in MessagePack, and the arrays of Clients; gives Ready or Broke."""
        try:
            opened = self._opened(bundle)
            wish = msgspec.msgpack.decode(engine, type=EngineWish)
            self._world = World(opened, Clients(*clients), wish)
            self._model = open_model(opened, wish)
        except Exception as error:
            return packing.pack(packing.broke(-1, error))
        self._stored = opened.manifest.stored()
        self._strategies: dict[tuple[str, bytes], AnyStrategy] = {}
        self._loaded = 0
        return packing.pack(Ready(os.getpid()))

    def do(self, text: bytes, base: Bytes) -> tuple[bytes, Bytes]:
        """An Errand; gives its reply, and the tensors of its result."""
        errand = msgspec.msgpack.decode(text, type=Errand)
        try:
            if errand.base != self._loaded:
                self._loaded = 0
                self._model.load(packing.views(base, self._stored))
                self._loaded = errand.base
            job = packing.unpack_job(errand.job, self._strategy(errand.kind))
            result = train(self._model, self._world, job)
            tensors = NOTHING if isinstance(result, Failed) else packing.joined(result.tensors)
            return packing.pack(packing.headline(errand.number, result)), tensors
        except Exception as error:
            return packing.pack(packing.broke(errand.number, error)), NOTHING

    def _opened(self, bundle: Bytes) -> Bundle:
        """Where nothing of it is left when this process is killed, if the system has such a place."""
        if hasattr(os, "memfd_create"):
            self._shared = Shared.make()
            self._shared.write(bundle, 0)
            return Bundle.open(f"/proc/self/fd/{self._shared.fd}")
        self._folder = tempfile.TemporaryDirectory(prefix="device-runtime-")
        return unpack(bundle.tobytes(), Path(self._folder.name) / "bundle")

    def _strategy(self, kind: Kind) -> AnyStrategy:
        key = kind.name, bytes(kind.settings)
        if key not in self._strategies:
            self._strategies[key] = registry.read(kind)
        return self._strategies[key]
