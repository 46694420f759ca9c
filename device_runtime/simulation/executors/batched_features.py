"""What heads learn from: features of devices' samples, kept while the extractor stays the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.engines.available import open_model
from device_runtime.models.engines.base import DeviceModel
from device_runtime.models.training.heads import inputs_of

from .job import World

READ_TOGETHER = 4096
"""Samples that are read and prepared at once."""
BATCH, SMALL_BATCH = 128, 32
"""Samples of one pass: on engine torch the first takes two thirds of the time of the second."""
BATCH_BYTES = 256 << 20
"""Of activations, up to which it is the first."""


@dataclass(frozen=True)
class Known:
    """A device's samples: inputs of its head float32 (n, inputs), labels int64 (n,)."""

    inputs: NDArray[np.float32]
    y: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.y.nbytes


class Features:
    """Of at most about `most_bytes`; the devices longest unused are forgotten first."""

    def __init__(self, world: World, most_bytes: int) -> None:
        self._world, self._most = world, most_bytes
        head = world.bundle.manifest.head
        self._head = head
        names = {spec.name for spec in world.bundle.manifest.stored()} - {head.weight, head.bias}
        self._extractor: Tensors | None = None if names else {}
        self._names = sorted(names)
        self._known: OrderedDict[int, Known] = OrderedDict()
        self._bytes = 0

    def of(self, base: Tensors, devices: Sequence[int]) -> list[Known]:
        """In the order of `devices`; not to be written to. Raises TensorError, EngineError, BundleError."""
        self._adopt(base)
        found = {device: self._known[device] for device in devices if device in self._known}
        for device in found:
            self._known.move_to_end(device)
        for device, known in self._computed([d for d in dict.fromkeys(devices) if d not in found]):
            found[device] = known
            self._keep(device, known)
        return [found[device] for device in devices]

    def forget(self) -> None:
        """Gives all memory back; the next use computes anew."""
        self._known.clear()
        self._bytes = 0
        if "_model" in self.__dict__:
            self._model.unload()

    @cached_property
    def _model(self) -> DeviceModel:
        """Made when it is needed: it may take more memory than all else."""
        forward = self._world.bundle.manifest.graphs["forward"]
        batch = BATCH if forward.activation_bytes(BATCH) <= BATCH_BYTES else SMALL_BATCH
        return open_model(self._world.bundle, self._world.engine, batch=batch)

    def _adopt(self, base: Tensors) -> None:
        old = self._extractor
        if old is not None and all(_same(base[name], old[name]) for name in self._names):
            return
        self._known.clear()
        self._bytes = 0
        self._model.load(base)
        self._extractor = {name: base[name] for name in self._names}

    def _computed(self, devices: Sequence[int]) -> Iterator[tuple[int, Known]]:
        """Each device's by itself, as the plain executor computes them: nothing beside it changes a bit."""
        clients, given = self._world.clients, self._world.bundle.manifest.input
        for group in _groups(devices, [len(clients.indices(device)) for device in devices]):
            rows = [clients.indices(device) for device in group]
            ends = np.cumsum([len(part) for part in rows])[:-1]
            prepared = np.split(given.prepare(clients.x[np.concatenate(rows)]), ends)
            for device, x, part in zip(group, prepared, rows, strict=True):
                yield device, Known(inputs_of(self._features(x), self._head), clients.y[part])

    def _features(self, x: NDArray[Any]) -> NDArray[np.float32]:
        return x.reshape(len(x), -1) if self._given_through else self._model.features(x)

    def _keep(self, device: int, known: Known) -> None:
        self._known[device] = known
        self._bytes += known.nbytes
        while self._bytes > self._most and self._known:
            _, forgotten = self._known.popitem(last=False)
            self._bytes -= forgotten.nbytes

    @cached_property
    def _given_through(self) -> bool:
        """Whether a network that has nothing but its head hands it the input as it is, tried on one batch."""
        manifest = self._world.bundle.manifest
        if (
            self._names
            or manifest.input.dtype != "float32"
            or prod(manifest.input.shape) != self._head.features
        ):
            return False
        x = np.random.default_rng([0]).standard_normal((8, *manifest.input.shape), np.float32)
        return np.array_equal(self._model.features(x), x.reshape(8, -1))


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return one is other or np.array_equal(one, other)


def _groups(devices: Sequence[int], samples: Sequence[int]) -> Iterator[list[int]]:
    """Devices in order, in groups of about READ_TOGETHER samples."""
    group: list[int] = []
    together = 0
    for device, count in zip(devices, samples, strict=True):
        group.append(device)
        together += count
        if together >= READ_TOGETHER:
            yield group
            group, together = [], 0
    if group:
        yield group
