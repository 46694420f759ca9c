"""Class statistics of features, sent with an update: counts, means, second moments.

The method is in docs/closed-form-head.md. Before local training, a device computes the features f that
the base's head takes, or fewer random sums of them if there are many (`directions.Projection`). For each
class it sends the count n_c and the mean of f; time permitting, it also sends one mean of f f^T for all
classes. The sums that these stand for add up over devices to those of all samples, however these are
divided (FedNCM: Legate et al. 2023; with second moments Fed3R: Fani et al. 2024).

A site sends the sums of its devices in the same way; if not all of them sent second moments, it also
sends the counts and means of those that did.

Held-out samples are not included; the counts of those that each head classifies correctly are sent with the
statistics (`held_out`).

A device may send statistics of only some of its classes (`most_classes`). These include no samples of other
classes, and no second moments: the difference of two rounds' moments would be those of a few samples.

If the loss is not of classes, a sample's stratum stands for its class (`TargetSpec.strata`), and statistics
are of its features followed by its targets.

`StatisticsFile` keeps those of a round's devices until all have come, in memory or in a temporary file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.stacked import only
from device_runtime.models.bundles.tensors import Tensors, TensorSpec
from device_runtime.strategies.directions.directions import Projection
from device_runtime.strategies.interface.kind import ClassStatistics

from . import class_sums, held_out
from .class_sums import ClassSums

PREFIX = "class-statistics/"
ROWS, MOMENTS, SPREAD = PREFIX + "rows", PREFIX + "moments", PREFIX + "spread"
"""Tensors on the wire: counts and means (`class_sums.write_rows`), the mean of f f^T, its largest number."""
MOMENT_ROWS = PREFIX + "moment-rows"
"""As ROWS, of the samples whose second moments are sent, if these are not all samples."""
RIGHT = PREFIX + "right"
"""The counts of held-out samples, int32 (1, `held_out.COUNTS`); no row if no head was compared."""
MOST_LABELS = 1 << 16
"""The most labels that the numbers in rows can tell apart."""
LEAST_FREE = 2
"""The least number of samples minus classes for which second moments are sent.

With one fewer, moments and means together would reveal the features of two samples.
"""
MOST_MOMENT = class_sums.MOST_NORM**2
"""The largest second moment that the aggregator accepts."""
TENSOR_BYTES = 72
"""Typical bytes of a tensor on the wire in addition to its values."""
OTHERS = 4
"""A device with more rare classes than it may send sends its other classes in one of OTHERS rounds."""

Shape = tuple[int, int]
"""(classes, width) of class sums."""


@dataclass(frozen=True)
class Statistics:
    """Sums of class statistics over samples, devices or rounds.

    sums: of all devices.
    moments: the sum of f f^T, float64 (width, width), of devices that sent second moments.
    moment_sums: as `sums`, of those devices.
    right: counts of held-out samples, float64 (`held_out.COUNTS`,).
    stands_for: of one device, how many samples in `sums` each sample stands for that it measured.
    Counts of samples are float64 if they decay.
    """

    sums: ClassSums
    moment_sums: ClassSums
    moments: NDArray[np.float64]
    right: NDArray[np.float64] = field(default_factory=held_out.none)
    stands_for: float = 1.0

    @classmethod
    def none(cls, labels: int, width: int) -> Statistics:
        nothing = ClassSums(np.zeros((labels, width)), np.zeros(labels, np.int64))
        return cls(nothing, nothing, np.zeros((width, width)))

    def add(self, other: Statistics) -> Statistics:
        return Statistics(
            self.sums + other.sums,
            self.moment_sums + other.moment_sums,
            self.moments + other.moments,
            self.right + other.right,
        )

    def times(self, scale: NDArray[Any]) -> Statistics:
        """The statistics of features multiplied by `scale`, float64 (width,)."""
        moments = self.moments * np.outer(scale, scale)
        sums, moment_sums = self.sums.times(scale), self.moment_sums.times(scale)
        return replace(self, sums=sums, moment_sums=moment_sums, moments=moments)

    def standing_for(self, times: float) -> Statistics:
        """The same means, with counts multiplied by `times`; second moments and `right` stay."""
        return replace(self, sums=self.sums.weighted(times), stands_for=times * self.stands_for)

    def decayed(self, gamma: float) -> Statistics:
        sums, moment_sums = (part.weighted(gamma) for part in (self.sums, self.moment_sums))
        return Statistics(sums, moment_sums, gamma * self.moments, gamma * self.right)


def infeasible_reason(manifest: Manifest, statistics: ClassStatistics) -> str:
    """Why these statistics give no closed-form head for a bundle; empty if they do."""
    head = manifest.head
    if manifest.target.own:
        return f"its loss is {manifest.target.description}, which only its graphs know"
    if manifest.columns > statistics.features // 2:
        most = f"at most half of {statistics.features}, the features of statistics"
        return f"its outputs are compared with {manifest.columns} columns, {most}"
    if head.bias is None:
        return "its head has no bias"
    shape = manifest.features.get("head", (head.features,))
    if shape != (head.features,):
        return f"its head takes features of shape {shape}, expected one vector for each sample"
    if manifest.strata > MOST_LABELS:
        return f"it tells {manifest.strata} classes apart, at most {MOST_LABELS} can be numbered"
    if manifest.scale is not None and projection_of(statistics, manifest).changes:
        return f"its {head.features} features have a scale, with which at most {statistics.features} can be"
    return ""


def is_from_site(sent: Tensors) -> bool:
    """Whether an update is from a site, by the rows that say whose second moments it has."""
    return MOMENT_ROWS in sent


def measure_statistics(
    features: NDArray[np.float32], y: NDArray[np.int64], labels: int, smallest: int
) -> Statistics:
    """The statistics of features (n, width) and labels y (n,), for classes of `smallest` samples or more."""
    sums = class_sums.sum_by_class(features, y, labels).at_least(smallest)
    counted = features[sums.counts[y] > 0].astype(np.float64)
    return Statistics(sums, sums, counted.T @ counted)


def encode(statistics: Statistics, settings: ClassStatistics) -> dict[str, NDArray[Any]]:
    """The tensors for the wire.

    ROWS: a row for each class with samples. If moments are asked for, MOMENTS: the upper triangle of the mean
    of f f^T relative to its largest number, float16 (1, width (width + 1) / 2), and SPREAD: that number;
    without a row if there are none, or too few samples (`LEAST_FREE`). RIGHT, if samples are held out.
    """
    moment_sums, numbers = statistics.moment_sums, settings.numbers
    sent: dict[str, NDArray[Any]] = {ROWS: class_sums.write_rows(statistics.sums, numbers)}
    if settings.hold_out:
        sent[RIGHT] = statistics.right[None, :].astype(np.int32)[: int(statistics.right[0] >= 1)]
    if settings.moments:
        upper = statistics.moments[np.triu_indices(len(statistics.moments))][None]
        count = int(moment_sums.counts.sum())
        count = count if count - len(moment_sums.present) >= LEAST_FREE else 0
        sent[MOMENTS], sent[SPREAD] = class_sums.quantise_rows(
            upper / count if count else upper[:0], "float16"
        )
        if count and not np.array_equal(moment_sums.counts, statistics.sums.counts):
            sent[MOMENT_ROWS] = class_sums.write_rows(moment_sums, numbers)
    return sent


def shape_of(statistics: ClassStatistics, manifest: Manifest) -> Shape:
    """The shape (classes, width) of the sums that a device's class statistics stand for."""
    return manifest.strata, projection_of(statistics, manifest).size + manifest.columns


def projection_of(statistics: ClassStatistics, manifest: Manifest) -> Projection:
    """The projection of the head's features to those that statistics are of, beside columns of targets."""
    return statistics.projection(manifest.head.features, manifest.columns)


def scale_of(manifest: Manifest, weights: Tensors) -> NDArray[np.float64]:
    """The scale of what statistics are of, (width,), in a bundle with a scale: targets have none."""
    return np.append(class_sums.scale_in(manifest, weights), np.ones(manifest.columns))


def decode(sent: Tensors, shape: Shape) -> Statistics:
    """The statistics that tensors of the wire stand for; the tensors must have passed `rejection_reason`."""
    sums, nothing = class_sums.read_rows(sent[ROWS], *shape), Statistics.none(*shape)
    right = sent[RIGHT].sum(axis=0, dtype=np.float64) if RIGHT in sent else nothing.right
    if MOMENTS not in sent or not len(sent[MOMENTS]):
        return Statistics(sums, nothing.moment_sums, nothing.moments, right)
    of_moments = class_sums.read_rows(sent[MOMENT_ROWS], *shape) if MOMENT_ROWS in sent else sums
    moments = nothing.moments
    moments[np.triu_indices(shape[1])] = (
        class_sums.restore_rows(sent[MOMENTS], sent[SPREAD])[0] * of_moments.counts.sum()
    )
    return Statistics(sums, of_moments, np.triu(moments) + np.triu(moments, 1).T, right)


def expected_of(sent: Tensors, accepted: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
    """Those of the accepted tensors that this update must have.

    Class statistics may be missing, or have no second moments or no RIGHT. Second moments of a site may have
    rows of their own.
    """
    without = set() if ROWS in sent else {ROWS, MOMENTS, SPREAD, MOMENT_ROWS, RIGHT}
    without |= set() if RIGHT in sent else {RIGHT}
    without |= set() if MOMENTS in sent else {MOMENTS, SPREAD, MOMENT_ROWS}
    without |= set() if MOMENT_ROWS in sent else {MOMENT_ROWS}
    return [spec for spec in accepted if spec.name not in without]


def split_statistics(sent: Tensors) -> tuple[Tensors, Tensors]:
    """The update without its class statistics, and the class statistics; empty if it has none."""
    if ROWS not in sent:
        return sent, {}
    statistics = {name: sent[name] for name in sent if name.startswith(PREFIX)}
    return only(sent, lambda name: name not in statistics), statistics


def rejection_reason(sent: Tensors, samples: float, smallest: int, shape: Shape) -> str:
    """Why class statistics of the right shapes and dtypes are rejected, with values.

    Empty if they are accepted, or there are none. `samples`: the most that the device can have. Allows for
    the rounding of means and moments.
    """
    if not sent:
        return ""
    if why := class_sums.rows_rejection_reason(sent[ROWS], *shape, smallest):
        return why
    counts = class_sums.read_rows(sent[ROWS], *shape).counts
    if counts.sum() > samples:
        return f"class counts sum to {counts.sum()}, the device has at most {samples:g} samples"
    if MOMENTS not in sent:
        return ""
    if MOMENT_ROWS not in sent:
        return _moments_rejection_reason(sent, sent[ROWS], shape)
    if why := class_sums.rows_rejection_reason(sent[MOMENT_ROWS], *shape, smallest):
        return why
    if len(more := np.flatnonzero(class_sums.read_rows(sent[MOMENT_ROWS], *shape).counts > counts)):
        return f"class {more[0]} has second moments of more samples than are counted"
    return _moments_rejection_reason(sent, sent[MOMENT_ROWS], shape)


def _moments_rejection_reason(sent: Tensors, rows: NDArray[np.uint8], shape: Shape) -> str:
    """Why second moments are rejected; empty if they are accepted.

    By Cauchy-Schwarz, the mean of f_i^2 is at least the weighted mean of squared class means in `rows`, and
    |mean of f_i f_j| is at most the root of the product of the means of f_i^2 and f_j^2.
    """
    if len(sent[MOMENTS]) != len(sent[SPREAD]) or len(sent[MOMENTS]) > len(rows):
        return f"second moments in {len(sent[MOMENTS])} rows, of {len(rows)} classes"
    if not len(sent[MOMENTS]):
        return ""
    if (np.abs(sent[MOMENTS]) > 1).any() or not 0 <= sent[SPREAD][0] <= MOST_MOMENT:
        largest = float(np.abs(sent[MOMENTS]).max()) * float(sent[SPREAD][0])
        return f"the largest second moment is {largest:.4g}, at most {MOST_MOMENT:g} is accepted"
    statistics = decode(sent, shape)
    sums, moments = statistics.moment_sums, statistics.moments / statistics.moment_sums.counts.sum()
    means = sums.sums[sums.present] / sums.counts[sums.present, None]
    weights, largest = sums.counts[sums.present] / sums.counts.sum(), np.abs(means).max(axis=1, keepdims=True)
    square = moments.diagonal()
    slack = 4 * class_sums.ROUNDING_ERROR[2] * float(np.abs(moments).max())
    off = 2 * class_sums.step_of(rows, shape[1]) * np.abs(means) * largest + 1e-12
    least = weights @ means**2 - weights @ off
    if len(low := np.flatnonzero(square + slack < least)):
        i = int(low[0])
        return f"the mean square of feature {i} is {square[i]:.4g}, its class means alone make {least[i]:.4g}"
    most = np.sqrt(np.outer(square.clip(0), square.clip(0))) + slack
    if len(high := np.argwhere(np.abs(moments) > most)):
        i, j = high[0]
        return (
            f"the moment of features {i} and {j} is {moments[i, j]:.4g}, at most {most[i, j]:.4g} is possible"
        )
    return ""


IN_MEMORY = 32 * 1024 * 1024
"""Bytes that are held in memory; more go to a file without a name, which disappears with the process."""


@dataclass(frozen=True)
class StatisticsSource:
    """Of which devices statistics are.

    size: samples of a device, without the factor for the rounds that they stand for.
    late: by how many rounds they are late.
    stands_for: how many samples each sample stands for that the device measured.
    """

    size: float
    late: int = 0
    stands_for: float = 1.0


class StatisticsFile:
    """Statistics in the order in which they were added, each with its source, read back bit for bit."""

    def __init__(self, labels: int, width: int) -> None:
        self.labels, self.width = labels, width
        self.sources: list[StatisticsSource] = []
        self._scratch: str | None = None
        self._file: Any = None
        self._places: list[tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]] = []

    def keep_in(self, scratch: Path | None) -> None:
        """Use this folder for what does not fit in memory; None: the system's temporary folder."""
        self._scratch = None if scratch is None else str(scratch)

    def __len__(self) -> int:
        return len(self.sources)

    def add(self, sent: Statistics, source: StatisticsSource) -> None:
        """Add one device's statistics. Raises OSError."""
        if self._file is None:
            self._file = SpooledTemporaryFile(IN_MEMORY, dir=self._scratch, prefix="statistics-")  # noqa: SIM115 - closed with the last reference
        arrays = (*_rows(sent.sums), *_rows(sent.moment_sums), _upper(sent), sent.right)
        place = self._file.seek(0, 2) or self._file.tell()
        self._places.append((place, tuple((array.dtype.str, array.shape) for array in arrays)))
        self.sources.append(source)
        for array in arrays:
            self._file.write(array.tobytes())

    def __iter__(self) -> Iterator[Statistics]:
        return (self.read(place) for place in range(len(self)))

    def read(self, number: int) -> Statistics:
        """The statistics that were added as number `number`."""
        place, arrays = self._places[number]
        self._file.seek(place)
        read = [self._array(np.dtype(dtype), shape) for dtype, shape in arrays]
        upper, right = read[6:]
        moments = np.zeros((self.width, self.width))
        if upper.size:
            moments[np.triu_indices(self.width)] = upper
            moments += np.triu(moments, 1).T
        return Statistics(self._sums(*read[:3]), self._sums(*read[3:6]), moments, right)

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        content = bytearray(self._file.read(dtype.itemsize * prod(shape)))
        return np.frombuffer(content, dtype).reshape(shape)

    def _sums(self, present: NDArray[np.int64], counts: NDArray[Any], sums: NDArray[np.float64]) -> ClassSums:
        whole = ClassSums(np.zeros((self.labels, self.width)), np.zeros(self.labels, counts.dtype))
        whole.counts[present], whole.sums[present] = counts, sums
        return whole


def _rows(sums: ClassSums) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float64]]:
    present = sums.present
    return present, sums.counts[present], sums.sums[present]


def _upper(sent: Statistics) -> NDArray[np.float64]:
    """The upper triangle of the second moments; empty where there are none."""
    if not sent.moments.any():
        return np.empty(0)
    return sent.moments[np.triu_indices(len(sent.moments))]
