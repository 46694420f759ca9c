"""Sums of features by class, and the rows in which class means are sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.models.errors import TensorError
from device_runtime.strategies.directions.directions import RADEMACHER, direction, words

ROW = np.dtype([("label", "<u2"), ("count", "<u4"), ("scale", "<f4")])
"""How a row begins, before the mean."""
NUMBERS: Mapping[str, np.dtype[Any]] = {"int8": np.dtype("i1"), "float16": np.dtype("<f2")}
"""The dtype of a mean's numbers, by the setting `numbers`."""
STEP: Mapping[int, float] = {1: 1 / 254, 2: 2.0**-11}
"""Largest error of rounding, relative to the largest number of the mean, by bytes a number."""
MOST_NORM = 1e4
"""No class mean of features is believed to be longer."""


@dataclass(frozen=True)
class ClassSums:
    """Sums of features float64 (classes, width), and counts (classes,): int64, or float64 if they decay."""

    sums: NDArray[np.float64]
    counts: NDArray[Any]

    def times(self, scale: NDArray[Any]) -> ClassSums:
        """Of features that are so many times as large."""
        return replace(self, sums=self.sums * scale)

    def weighted(self, by: float) -> ClassSums:
        """The same means, counted so many times."""
        return ClassSums(by * self.sums, by * self.counts)

    def recounted(self, counts: NDArray[Any]) -> ClassSums:
        """The same means with these counts, 0 where there were none."""
        return ClassSums(self.sums * (counts / np.maximum(1.0, self.counts))[:, None], counts)

    def at_least(self, count: int) -> ClassSums:
        """Without the classes that have fewer samples."""
        enough = self.counts >= count
        return ClassSums(self.sums * enough[:, None], self.counts * enough)

    def means(self) -> NDArray[np.float32]:
        """Of the classes in `present`, float32 (present, width)."""
        present = self.present
        means: NDArray[np.float32] = (self.sums[present] / self.counts[present, None]).astype(np.float32)
        return means

    def __add__(self, other: ClassSums) -> ClassSums:
        return ClassSums(self.sums + other.sums, self.counts + other.counts)

    def beside(self, kept: Tensors) -> ClassSums:
        """Together with what `kept` gave, if anything was."""
        return self + ClassSums(kept["sums"], kept["counts"]) if kept else self

    def kept(self) -> Tensors:
        return {"sums": self.sums, "counts": self.counts}

    @property
    def present(self) -> NDArray[np.int64]:
        """The classes that somebody has."""
        return np.flatnonzero(self.counts)


def of_features(features: NDArray[np.float32], y: NDArray[np.int64], labels: int) -> ClassSums:
    """Sum the features (n, width) of each class, in float64."""
    sums = np.zeros((labels, features.shape[1]))
    np.add.at(sums, y, features.astype(np.float64))
    return ClassSums(sums, np.bincount(y, minlength=labels).astype(np.int64))


def short(rows: NDArray[np.float64], numbers: str) -> tuple[NDArray[Any], NDArray[np.float32]]:
    """Rows relative to the largest number of each, as float16 or int8; and that number.

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


def long(values: NDArray[Any], largest: NDArray[np.float32]) -> NDArray[np.float64]:
    """What `short` has written."""
    relative = values.astype(np.float64) / (127 if values.dtype == np.int8 else 1)
    return relative * largest.astype(np.float64)[:, None]


def row_bytes(width: int, numbers: str) -> int:
    """Bytes of the row of one class."""
    return ROW.itemsize + width * NUMBERS[numbers].itemsize


def spec_of_rows(name: str, labels: int, width: int, numbers: str) -> TensorSpec:
    """A tensor of rows: at most one for each label."""
    return TensorSpec(name, (labels, row_bytes(width, numbers)), "uint8", variable=True)


def write_rows(sums: ClassSums, numbers: str) -> NDArray[np.uint8]:
    """uint8 (present, row_bytes): for each class that has a count its label, count and largest number, all
    little-endian, and its mean relative to that. Raises TensorError for a number that is not finite.
    """
    present = sums.present
    means, scales = short(sums.sums[present] / sums.counts[present, None], numbers)
    begin = np.empty(len(present), ROW)
    begin["label"], begin["count"], begin["scale"] = present, sums.counts[present], scales
    rows = np.empty((len(present), row_bytes(sums.sums.shape[1], numbers)), np.uint8)
    rows[:, : ROW.itemsize] = begin.view(np.uint8).reshape(len(present), ROW.itemsize)
    rows[:, ROW.itemsize :] = means.astype(NUMBERS[numbers]).view(np.uint8)
    return rows


def read_rows(rows: NDArray[np.uint8], labels: int, width: int) -> ClassSums:
    """What the rows say; `doubt_rows` has passed them."""
    begin, means, scales = _parts(rows, width)
    known = ClassSums(np.zeros((labels, width)), np.zeros(labels, np.int64))
    known.counts[begin["label"]] = begin["count"]
    known.sums[begin["label"]] = long(means, scales) * begin["count"][:, None].astype(np.float64)
    return known


def doubt_rows(rows: NDArray[np.uint8], labels: int, width: int, smallest: int) -> str:
    """Why rows of the right shape are not believed, with values; empty when they are."""
    begin, means, scales = _parts(rows, width)
    present, counts = begin["label"].astype(np.int64), begin["count"].astype(np.int64)
    if (np.diff(present) <= 0).any() or (present >= labels).any():
        return f"it has rows of classes {present.tolist()}, expected ascending, below {labels}"
    if len(few := np.flatnonzero(counts < max(1, smallest))):
        return f"class {present[few[0]]} is counted {counts[few[0]]} times, expected {smallest} or more"
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(long(means, scales), axis=1)
    if len(wrong := np.flatnonzero(~((norms <= MOST_NORM) & (scales >= 0)))):
        worst = wrong[0]
        known = f"is {norms[worst]:.4g} long, at most {MOST_NORM:g} is believed"
        return f"the mean of class {present[worst]} {known}"
    return ""


def step_of(rows: NDArray[np.uint8], width: int) -> float:
    """`STEP` of these rows."""
    return STEP[(rows.shape[1] - ROW.itemsize) // width]


def _parts(rows: NDArray[np.uint8], width: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.float32]]:
    """How rows begin, their means as they were sent, and the largest number of each."""
    begin = np.ascontiguousarray(rows[:, : ROW.itemsize]).view(ROW).reshape(len(rows))
    means = np.ascontiguousarray(rows[:, ROW.itemsize :])
    dtype = next(one for one in NUMBERS.values() if one.itemsize * width == means.shape[1])
    return begin, means.view(dtype).reshape(len(rows), width), begin["scale"].astype(np.float32)


# FROM projection: A fixed random projection of features: each is added, with a random sign, to one of fewer
# sums.
#
# With d features and k sums every sum has d / k features, rounded up or down. Products keep their value in
# the
# mean (feature hashing: Weinberger et al. 2009), and it costs one addition a feature. Order and signs are
# drawn from the words of `directions`, which are the same bits everywhere.

Number = TypeVar("Number", bound=np.floating[Any])


@dataclass(frozen=True)
class Projection:
    """Of `width` features onto `size`; nothing is changed where they are no more than that."""

    width: int
    most: int
    seed: int

    @property
    def size(self) -> int:
        return min(self.width, self.most)

    @property
    def changes(self) -> bool:
        return self.width > self.most

    def project(self, features: NDArray[Number]) -> NDArray[Number]:
        """f R: (n, width) -> (n, size), linear."""
        if not self.changes:
            return features
        sums = np.zeros((len(features), self.size), features.dtype)
        for part, signs in self._parts():
            sums[:, : len(part)] += features[:, part] * signs
        return sums

    def back(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """W R': weights (n, size) of projected features -> (n, width), of the features themselves."""
        if not self.changes:
            return weights
        whole = np.empty((len(weights), self.width))
        for part, signs in self._parts():
            whole[:, part] = weights[:, : len(part)] * signs
        return whole

    def _parts(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        """Features that go to sums 0, 1, and so on, and their signs."""
        order, signs = self._drawn
        for begin in range(0, self.width, self.size):
            part = order[begin : begin + self.size]
            yield part, signs[part]

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        order = np.argsort(words(self.seed, 0, self.width), kind="stable")
        return order, direction(self.seed, 1, 0, self.width, RADEMACHER)


@lru_cache(maxsize=16)
def projection(width: int, most: int, seed: int) -> Projection:
    """Kept: drawing takes longer than projecting."""
    return Projection(width, most, seed)
