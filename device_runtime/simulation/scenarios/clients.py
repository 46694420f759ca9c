"""The samples of all devices: one data set, and each device's part of it as indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.errors import TensorError
from device_runtime.simulation.data import DataSet
from device_runtime.simulation.errors import ScenarioError
from device_runtime.strategies.interface.device_half import LocalData


@dataclass(frozen=True)
class Clients:
    """A data set divided among devices.

    `x` raw inputs (n, ...), `y` targets as the graphs take them, labels int64 (n,) or float32 (n, columns);
    device i has order[offsets[i]:offsets[i + 1]]. `x` may be memory-mapped: a device's samples are read and
    prepared when they are needed.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    order: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, x: NDArray[Any], y: NDArray[Any], parts: Sequence[NDArray[np.int64]]) -> Clients:
        """Made from each device's indices into x and y, (n_k,)."""
        ends = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int64)
        order = np.concatenate(parts) if len(parts) else np.empty(0, np.int64)
        return cls(x, y, order.astype(np.int64, copy=False), ends)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def indices(self, device: int) -> NDArray[np.int64]:
        """The indices of this device's samples, (n_k,)."""
        return self.order[self.offsets[device] : self.offsets[device + 1]]

    def local(self, device: int, spec: InputSpec) -> LocalData:
        """This device's samples, prepared for the bundle's input. Raises TensorError."""
        indices = self.indices(device)
        return LocalData(spec.prepare(self.x[indices]), self.y[indices])

    def class_counts(self, labels: int) -> NDArray[np.int64]:
        """The number of samples of each class on each device, (devices, labels); of columns (devices, 1)."""
        if self.y.ndim > 1:
            return np.diff(self.offsets)[:, None]
        counts = np.zeros((len(self), labels), np.int64)
        owner = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        np.add.at(counts, (owner, self.y[self.order]), 1)
        return counts

    def save(self, folder: Path) -> None:
        """Writes .npy files, which other processes map into memory."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("x", "y", "order", "offsets"):
            np.save(folder / f"{name}.npy", getattr(self, name), allow_pickle=False)

    @classmethod
    def open(cls, folder: Path) -> Clients:
        """Opens what `save` wrote; `x` and `order` are memory-mapped."""
        x, order = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("x", "order")
        )
        y, offsets = (np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("y", "offsets"))
        return cls(x, y, order, offsets)


def _numbers_of(labels: Sequence[str]) -> NDArray[np.float64] | None:
    """The labels as numbers; None if any is none."""
    try:
        return np.array([float(label) for label in labels])
    except ValueError:
        return None


def prepared_targets(data: DataSet, manifest: Manifest, y: NDArray[Any]) -> NDArray[Any]:
    """Targets `y` of the data as the bundle's graphs take them. Raises ScenarioError where they do not fit.

    Classes that are numbers may be values. Of a bundle that reconstructs its input, classes of data that has
    others are all taken as normal.
    """
    target, labels = manifest.target, len(manifest.labels)
    if target.has_columns and not data.has_columns and (values := _numbers_of(data.labels)) is not None:
        y, data = values[y][:, None], replace(data, train_y=values[data.train_y][:, None])
    if target.has_columns != data.has_columns:
        has = f"{len(data.labels)} columns of targets" if data.has_columns else f"{len(data.labels)} classes"
        takes = f"{target.loss} of columns" if target.has_columns else target.description
        raise ScenarioError(f"the data has {has}, the loss of bundle {manifest.name} is {takes}")
    if target.has_columns:
        try:
            return target.prepare(y)
        except TensorError as error:
            raise ScenarioError(f"the data does not fit bundle {manifest.name}: {error}") from None
    if target.compared == "input" and len(data.labels) > labels:
        return np.zeros_like(y)
    if (top := int(y.max(initial=0))) >= labels:
        raise ScenarioError(f"the data has label {top}, bundle {manifest.name} has {labels}")
    return y
