"""The fleet's prepared samples on the processor where networks of many devices are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.simulation.data.loading import Clients
from device_runtime.strategies.interface.device_half import LocalData

if TYPE_CHECKING:
    from device_runtime.models.torch_engine.place import TorchProcessor
    from device_runtime.models.torch_engine.steps import SampleArray

PREPARED_TOGETHER = 4096
"""Samples that are prepared and sent at once."""


@dataclass(frozen=True)
class DeviceSamples:
    """A device's samples: `rows`, (n_k,), of x (n, *input) and y (n, ..), which other devices share.

    x and y are arrays, or tensors on the processor that trains. `local` has the samples for the plan.
    """

    x: SampleArray
    y: SampleArray
    rows: NDArray[np.int64]
    local: LocalData


class FleetSamples:
    """The samples of a fleet, for training on a processor.

    On a GPU with room for all of them they are sent once, as x and y of the data set. Else those of each
    group of devices are prepared when it is trained.
    """

    def __init__(self, clients: Clients, manifest: Manifest, place: TorchProcessor) -> None:
        self._clients, self._manifest, self._place = clients, manifest, place

    def of(self, devices: Sequence[int]) -> list[DeviceSamples]:
        """The samples of these devices, in their order. Raises TensorError."""
        clients, spec = self._clients, self._manifest.input
        rows = [clients.indices(device) for device in devices]
        if self._whole is not None:
            return [DeviceSamples(*self._whole, part, _PreparedLater(clients, part, spec)) for part in rows]
        every = np.concatenate(rows)
        x, y = spec.prepare(clients.x[every]), clients.y[every]
        ends = np.cumsum([len(part) for part in rows])
        places = np.split(np.arange(len(every)), ends[:-1])
        cut = (slice(end - len(part), end) for part, end in zip(rows, ends, strict=True))
        return [
            DeviceSamples(x, y, at, LocalData(x[part], y[part])) for at, part in zip(places, cut, strict=True)
        ]

    @cached_property
    def _whole(self) -> tuple[SampleArray, SampleArray] | None:
        """x and y of the data set on the GPU; None on the CPU, or if they do not fit."""
        clients, spec, target = self._clients, self._manifest.input, self._manifest.target
        if self._place.on_cpu:
            return None
        of_x = prod(spec.shape) * np.dtype(spec.dtype).itemsize
        of_y = prod(target.shape) * np.dtype(target.dtype).itemsize
        if len(clients.y) * (of_x + of_y) > self._place.gpu_share_bytes:
            return None
        x = self._place.empty((len(clients.y), *spec.shape), spec.dtype)
        for start in range(0, len(x), PREPARED_TOGETHER):
            part = slice(start, start + PREPARED_TOGETHER)
            x[part] = self._place.tensor(spec.as_graphs_take(spec.prepare(clients.x[part])))
        return x, self._place.tensor(clients.y.astype(target.dtype, copy=False))


class _PreparedLater(LocalData):
    """A device's samples, whose x is prepared when it is read: most plans need only their number."""

    def __init__(self, clients: Clients, rows: NDArray[np.int64], spec: InputSpec) -> None:
        self.__dict__.update(y=clients.y[rows], _source=(clients, rows, spec))

    @cached_property
    def x(self) -> NDArray[Any]:
        clients, rows, spec = self.__dict__["_source"]
        prepared: NDArray[Any] = spec.prepare(clients.x[rows])
        return prepared
