"""The trained tensors of many copies of a network, on the processor that trained them."""
# mypy: allow-untyped-calls, allow-any-unimported

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from device_runtime.models.bundles.tensors import Tensors

from .place import TorchProcessor

CPU_ROOM = 64 << 20
"""The bytes of main memory in which trained copies may wait."""
CPU_BLOCK, GPU_BLOCK = 1 << 17, 1 << 24
"""Values that are added up at once: on a CPU they stay in its cache."""


class TorchCopies:
    """float32 tensors (k, *shape) of k copies, by name; see `bundles.stacked.Copies`."""

    def __init__(self, tensors: Mapping[str, Tensor], place: TorchProcessor) -> None:
        self._tensors, self._place = tensors, place
        self.shapes = {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}
        self._fetched: dict[str, NDArray[Any]] = {}
        self._squares: dict[str, tuple[NDArray[Any], NDArray[np.float64]]] = {}

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self._tensors.values())

    @property
    def room(self) -> int:
        return CPU_ROOM if self._place.on_cpu else self._place.gpu_share_bytes

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        values = [tensor.flatten(1) for tensor in self._tensors.values()]
        ends = torch.stack([end for each in values for end in (each.amin(1), each.amax(1))])  # NaN is both
        finite: NDArray[np.bool_] = ends.isfinite().all(0).cpu().numpy()
        return finite

    def fetched(self, name: str) -> NDArray[Any]:
        if name not in self._fetched:
            self._fetched[name] = self._tensors[name].cpu().numpy()
        return self._fetched[name]

    def squares(self, starts: Tensors) -> dict[str, NDArray[np.float64]]:
        measured = self._squares
        new = [name for name in starts if name not in measured or measured[name][0] is not starts[name]]
        if new:
            computed = torch.stack([self._squared(name, starts[name]) for name in new]).cpu().numpy()
            for name, squares in zip(new, computed, strict=True):
                measured[name] = starts[name], squares
        return {name: measured[name][1] for name in starts}

    def _squared(self, name: str, start: NDArray[Any]) -> Tensor:
        tensor, at_once = self._tensors[name], self._columns(len(self._tensors[name]))
        total = torch.zeros(len(tensor), dtype=torch.float64, device=tensor.device)
        begins = self._place.tensor(start).expand(tensor.shape[1:]).flatten().split(at_once)
        for part, begin in zip(tensor.flatten(1).split(at_once, dim=1), begins, strict=True):
            change = (part - begin).double()
            total += torch.linalg.vecdot(change, change)
        return total

    def sums(self, names: Iterable[str], weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        counted = np.flatnonzero(weights)
        rows = slice(None) if len(counted) == len(weights) else self._place.tensor(counted)
        factors, sums = self._place.tensor(weights[counted]), {}
        for name in names:
            parts = self._tensors[name].flatten(1).split(self._columns(len(counted)), dim=1)
            total = torch.cat([factors @ part[rows].double() for part in parts])
            sums[name] = total.cpu().numpy().reshape(self.shapes[name])
        return sums

    def _columns(self, rows: int) -> int:
        return max(1, (CPU_BLOCK if self._place.on_cpu else GPU_BLOCK) // max(1, rows))
