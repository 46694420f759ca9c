"""Sums of features by class, the encoding of class means, and the scale of features before the head.

Features are scaled to about the same size, if the bundle has a tensor for it. The loss is most curved
along the weights of large features. If all features are about as large, one step length suits all weights
of the head, and no class mean is dominated by a few features (docs/zeroth-order.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.errors import TensorError

ROW = np.dtype([("label", "<u2"), ("count", "<u4"), ("scale", "<f4")])
"""The header of a row, before the mean."""
NUMBERS: Mapping[str, np.dtype[Any]] = {"int8": np.dtype("i1"), "float16": np.dtype("<f2")}
"""The dtype of a mean's numbers, by the setting `numbers`."""
ROUNDING_ERROR: Mapping[int, float] = {1: 1 / 254, 2: 2.0**-11}
"""Largest rounding error, relative to the largest number of the mean, by bytes of a number."""
MOST_NORM = 1e4
"""The largest Euclidean norm of a class mean that the aggregator accepts."""


@dataclass(frozen=True)
class ClassSums:
    """Sums of features float64 (classes, width), and counts (classes,): int64, or float64 if they decay."""

    sums: NDArray[np.float64]
    counts: NDArray[Any]

    def times(self, scale: NDArray[Any]) -> ClassSums:
        """The sums of features multiplied by `scale` (width,)."""
        return replace(self, sums=self.sums * scale)

    def weighted(self, by: float) -> ClassSums:
        """The same means, with counts multiplied by `by`."""
        return ClassSums(by * self.sums, by * self.counts)

    def recounted(self, counts: NDArray[Any]) -> ClassSums:
        """The same means with these counts; sums stay 0 for a class that has no samples."""
        return ClassSums(self.sums * (counts / np.maximum(1.0, self.counts))[:, None], counts)

    def at_least(self, count: int) -> ClassSums:
        """Without the classes that have fewer than `count` samples."""
        enough = self.counts >= count
        return ClassSums(self.sums * enough[:, None], self.counts * enough)

    def means(self) -> NDArray[np.float32]:
        """The means of the classes in `present`, float32 (present, width)."""
        present = self.present
        means: NDArray[np.float32] = (self.sums[present] / self.counts[present, None]).astype(np.float32)
        return means

    def __add__(self, other: ClassSums) -> ClassSums:
        return ClassSums(self.sums + other.sums, self.counts + other.counts)

    def beside(self, memory: Tensors) -> ClassSums:
        """Added to sums that `kept` wrote; `memory` may be empty."""
        return self + ClassSums(memory["sums"], memory["counts"]) if memory else self

    def kept(self) -> Tensors:
        """As tensors, to keep until the next round; read by `beside`."""
        return {"sums": self.sums, "counts": self.counts}

    @property
    def present(self) -> NDArray[np.int64]:
        """The labels of classes that have samples."""
        return np.flatnonzero(self.counts)


def sum_by_class(features: NDArray[np.float32], y: NDArray[np.int64], labels: int) -> ClassSums:
    """The sums of features (n, width) by class, in float64."""
    sums = np.zeros((labels, features.shape[1]))
    np.add.at(sums, y, features.astype(np.float64))
    return ClassSums(sums, np.bincount(y, minlength=labels).astype(np.int64))


def quantise_rows(rows: NDArray[np.float64], numbers: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Rows relative to the largest number of each, as float16 or int8; and that number, float32 (rows,).

    Raises TensorError for a number that is not finite.
    """
    with np.errstate(over="ignore"):
        largest = np.abs(rows).max(axis=1, initial=0.0).astype(np.float32)
    if not np.isfinite(largest).all():
        raise TensorError("features have non-finite values")
    relative = rows / np.where(largest > 0, largest, 1).astype(np.float64)[:, None]
    if numbers == "int8":
        return np.rint(127 * np.clip(relative, -1, 1)).astype(np.int8), largest
    return relative.astype(np.float16), largest


def restore_rows(values: NDArray[Any], largest: NDArray[np.float32]) -> NDArray[np.float64]:
    """The rows that `quantise_rows` shortened, up to rounding."""
    relative = values.astype(np.float64) / (127 if values.dtype == np.int8 else 1)
    return relative * largest.astype(np.float64)[:, None]


def row_bytes(width: int, numbers: str) -> int:
    """Bytes of the row of one class."""
    return ROW.itemsize + width * NUMBERS[numbers].itemsize


def spec_of_rows(name: str, labels: int, width: int, numbers: str) -> TensorSpec:
    """A tensor of rows: at most one for each label."""
    return TensorSpec(name, (labels, row_bytes(width, numbers)), "uint8", variable=True)


def write_rows(sums: ClassSums, numbers: str) -> NDArray[np.uint8]:
    """One row for each class that has samples, uint8 (present, row_bytes).

    A row is the label, the count and the largest number, all little-endian (`ROW`), then the mean relative to
    that number. Raises TensorError for a number that is not finite.
    """
    present = sums.present
    means, scales = quantise_rows(sums.sums[present] / sums.counts[present, None], numbers)
    begin = np.empty(len(present), ROW)
    begin["label"], begin["count"], begin["scale"] = present, sums.counts[present], scales
    rows = np.empty((len(present), row_bytes(sums.sums.shape[1], numbers)), np.uint8)
    rows[:, : ROW.itemsize] = begin.view(np.uint8).reshape(len(present), ROW.itemsize)
    rows[:, ROW.itemsize :] = means.astype(NUMBERS[numbers]).view(np.uint8)
    return rows


def read_rows(rows: NDArray[np.uint8], labels: int, width: int) -> ClassSums:
    """The sums that rows stand for; the rows must have passed `rows_rejection_reason`."""
    begin, means, scales = _parts(rows, width)
    sums = ClassSums(np.zeros((labels, width)), np.zeros(labels, np.int64))
    sums.counts[begin["label"]] = begin["count"]
    sums.sums[begin["label"]] = restore_rows(means, scales) * begin["count"][:, None].astype(np.float64)
    return sums


def rows_rejection_reason(rows: NDArray[np.uint8], labels: int, width: int, smallest: int) -> str:
    """Why rows of the right shape are rejected, with values; empty if they are accepted."""
    begin, means, scales = _parts(rows, width)
    present, counts = begin["label"].astype(np.int64), begin["count"].astype(np.int64)
    if (np.diff(present) <= 0).any() or (present >= labels).any():
        return f"it has rows of classes {present.tolist()}, expected ascending, below {labels}"
    if len(few := np.flatnonzero(counts < max(1, smallest))):
        return f"class {present[few[0]]} is counted {counts[few[0]]} times, expected {smallest} or more"
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(restore_rows(means, scales), axis=1)
    if len(wrong := np.flatnonzero(~((norms <= MOST_NORM) & (scales >= 0)))):
        worst = wrong[0]
        reason = f"is {norms[worst]:.4g} long, at most {MOST_NORM:g} is accepted"
        return f"the mean of class {present[worst]} {reason}"
    return ""


def step_of(rows: NDArray[np.uint8], width: int) -> float:
    """The largest rounding error of these rows, relative to the largest number of each row."""
    return ROUNDING_ERROR[(rows.shape[1] - ROW.itemsize) // width]


def _parts(rows: NDArray[np.uint8], width: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """The headers of rows, their means as sent, and the largest number of each."""
    begin = np.ascontiguousarray(rows[:, : ROW.itemsize]).view(ROW).reshape(len(rows))
    means = np.ascontiguousarray(rows[:, ROW.itemsize :])
    dtype = next(form for form in NUMBERS.values() if form.itemsize * width == means.shape[1])
    return begin, means.view(dtype).reshape(len(rows), width), begin["scale"].astype(np.float32)


FLOOR = 0.1
"""Share of the average mean square that is added to each feature's, for features that are nearly 0."""


def scale_in(manifest: Manifest, weights: Tensors) -> NDArray[np.float64]:
    """The current scale of the features, float64 (width,); 1 in a bundle without a scale."""
    if manifest.scale is None:
        return np.ones(manifest.head.features)
    return np.asarray(weights[manifest.scale], np.float64)


def scale_by(means: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """A new scale float32 (width,), from class means (classes, width) of unscaled features.

    It is 1 / the root mean square of each feature over the means, times a factor that keeps the size of the
    means as a whole.
    """
    squares = np.square(means, dtype=np.float64).mean(axis=0)
    if not squares.any():
        return np.ones(len(squares), np.float32)
    scale = 1 / np.sqrt(squares + FLOOR * squares.mean())
    scale *= np.sqrt(squares.sum() / (squares * scale**2).sum())
    return np.asarray(scale, np.float32)
