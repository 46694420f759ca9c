"""Converts updates to vectors of integers, and a sum of such vectors to one update that stands for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import MaskError, SpoiltSum
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import Update
from device_runtime.strategies.interface.kind import AnyStrategy, variant_named
from device_runtime.strategies.statistics import class_statistics, kind_statistics
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums

from .layout import (
    CHECKS,
    COUNTS,
    LOSS,
    LOSS_KNOWN,
    MOMENT_COUNTS,
    MOMENT_SUMS,
    MOMENTS,
    RIGHT,
    SUMS,
    SumLayout,
    TensorPart,
)
from .masks import MaskedVector

CHUNK = 1 << 14
"""Values that are converted at a time."""
_NEVER_NEGATIVE = (LOSS_KNOWN, COUNTS, RIGHT, MOMENT_COUNTS)
NOISE_REACH = 8.0
"""Noise beyond so many deviations does not happen: in one of 10^15 values."""


@dataclass(frozen=True)
class Weighed:
    """An update to mask: the kind that made it, as it is offered, and the weight that counts as 1 in the sum.

    most_weight: in samples; a larger weight counts as this one.
    """

    update: Update
    kind: AnyStrategy
    most_weight: int

    @property
    def strategy(self) -> AnyStrategy:
        """The form of the kind that made the update."""
        return variant_named(self.kind, self.update.variant)

    @property
    def share(self) -> float:
        """The update's weight in parts of `most_weight`, at most 1."""
        return weight_share(self.kind.weight(self.update), self.most_weight)


def weight_share(weight: float, most_weight: int) -> float:
    """A weight in samples in parts of `most_weight`, at most 1."""
    return min(1.0, weight / most_weight)


def shortened(update: Update, layout: SumLayout, most_norm: float = 0.0) -> tuple[Update, float]:
    """The update with its changes shortened as `write` does, and by what factor; the same one for 1.

    Raises MaskError as `write`.
    """
    factor = _shortening(update.tensors, layout, most_norm)
    if factor == 1.0:
        return update, factor
    short = {part.name: np.empty(part.shape, np.float32) for part in layout.tensors}
    for part, at, change in _changes(update.tensors, layout):
        start = 0.0 if part.base is None else part.base.ravel()[at : at + len(change)]
        short[part.name].ravel()[at : at + len(change)] = start + factor * change
    return replace(update, tensors={**update.tensors, **short}), factor


def write(weighed: Weighed, layout: SumLayout, most_norm: float = 0.0) -> tuple[MaskedVector, str]:
    """The integers of an update, and what was shortened so that it fits; "" for nothing.

    most_norm: bound on the Euclidean norm of all changes together; 0: none. Raises MaskError for an update
    with numbers that are not finite, or without a tensor of the layout.
    """
    vector = MaskedVector.zeros(layout.values, layout.numbers)
    tensors, values = weighed.update.tensors, vector.values.view(np.int32)
    factor = _shortening(tensors, layout, most_norm)
    end = 0
    for part, _, change in _changes(tensors, layout):
        start, end = end, end + len(change)
        values[start:end] = np.rint(change * (factor * weighed.share * 2.0**part.exponent))
    values[end:] = 1
    _write_sums(vector.sums, weighed, layout)
    return vector, f"its changes were shortened to {factor:.3g} of their length" if factor < 1 else ""


def _changes(tensors: Tensors, layout: SumLayout) -> Iterator[tuple[TensorPart, int, NDArray[np.float64]]]:
    """The changes of weights, at most CHUNK at a time, each with its place in the tensor.

    So no second copy of the update is held. Raises MaskError as `write`.
    """
    for part in layout.tensors:
        if part.name not in tensors or tensors[part.name].shape != part.shape:
            shape = tensors[part.name].shape if part.name in tensors else "missing"
            raise MaskError(f"{part.name} is {shape}, expected {part.shape}")
        flat = tensors[part.name].ravel()
        base = None if part.base is None else part.base.ravel()
        for at in range(0, part.size, CHUNK):
            change = flat[at : at + CHUNK].astype(np.float64)
            if base is not None:
                change -= base[at : at + CHUNK]
            if not np.isfinite(change).all():
                raise MaskError(f"{part.name} has non-finite values")
            yield part, at, change


def _shortening(tensors: Tensors, layout: SumLayout, most_norm: float) -> float:
    """The factor, at most 1, by which all changes are shortened to keep the bounds."""
    factor, square = 1.0, 0.0
    for part, _, change in _changes(tensors, layout):
        factor = min(factor, part.bound / max(part.bound, float(change.max()), -float(change.min())))
        square += float(np.square(change).sum()) if most_norm else 0.0
    return min(factor, most_norm / max(most_norm, square**0.5)) if most_norm else factor


def _write_sums(into: NDArray[np.uint64], weighed: Weighed, layout: SumLayout) -> None:
    """The numbers beside the weights: each in parts of `most_weight`."""
    numbers = _numbers(weighed, layout)
    at = 0
    for part in layout.sums:
        values, limit = np.asarray(numbers[part.name], np.float64), 2.0**part.bound_bits
        scaled = np.clip(values.ravel(), -limit, limit) * 2.0**part.exponent
        if not np.isfinite(scaled).all():
            raise MaskError(f"{part.name} has non-finite values")
        into[at : at + part.size] = np.rint(scaled).astype(np.int64).astype(np.uint64)
        at += part.size


def _numbers(weighed: Weighed, layout: SumLayout) -> Mapping[str, Any]:
    update, most = weighed.update, weighed.most_weight
    has_loss = not isnan(update.train_loss)
    numbers: dict[str, Any] = {
        LOSS: weighed.share * update.train_loss if has_loss else 0.0,
        LOSS_KNOWN: weighed.share if has_loss else 0.0,
    }
    summed = [name for name in capabilities.summed(weighed.strategy) if name in update.tensors]
    numbers |= {name: update.tensors[name].astype(np.float64) / most for name in summed}
    statistics = _statistics(weighed, layout)
    if statistics is not None:
        upper = statistics.moments[np.triu_indices(len(statistics.moments))]
        counted = (statistics.sums.counts.sum(), statistics.moment_sums.counts.sum(), statistics.right.max())
        whole = max(most, *map(float, counted))  # a device with more samples counts as `most_weight`
        numbers |= {
            SUMS: statistics.sums.sums / whole,
            COUNTS: statistics.sums.counts / whole,
            RIGHT: statistics.right / whole,
            MOMENT_SUMS: statistics.moment_sums.sums / whole,
            MOMENT_COUNTS: statistics.moment_sums.counts / whole,
            MOMENTS: upper / whole,
        }
    return numbers


def _statistics(weighed: Weighed, layout: SumLayout) -> Statistics | None:
    """The update's class statistics, scaled to all samples that they stand for; zeros if it has none."""
    if layout.statistics is None:
        return None
    update, strategy = weighed.update, weighed.strategy
    shape = next(part.shape for part in layout.sums if part.name == SUMS)
    _, sent = class_statistics.split_statistics(update.tensors)
    if not sent:
        return Statistics.none(shape[0], shape[1])
    statistics = class_statistics.decode(sent, (shape[0], shape[1]))
    if class_statistics.is_from_site(sent):
        return statistics
    counted = float(statistics.sums.counts.sum())
    times = kind_statistics.samples_per_measured(strategy, update.num_examples, counted)
    return statistics if times == 1 else statistics.standing_for(times)


@dataclass(frozen=True)
class SummedGroup:
    """Figures of a sum's devices, which are sent in the clear.

    devices: their number. share: the sum of their weights, in parts of `most_weight`. num_examples: the sum
    of their samples. deviation: that of central noise in their sum, as in `noise.add_noise`; 0: none.
    most_norm: the bound on the norm of a device's changes, as in `write`; 0: none.
    """

    devices: int
    share: float
    num_examples: int
    most_weight: int
    deviation: float = 0.0
    most_norm: float = 0.0


@dataclass(frozen=True)
class OpenedSum:
    """The mean of a group's updates, and the sum of their class statistics (None: they have none)."""

    update: Update
    statistics: Statistics | None


def read(total: MaskedVector, layout: SumLayout, group: SummedGroup, strategy: AnyStrategy) -> OpenedSum:
    """One update that stands for all devices of a sum, after its masks were subtracted.

    Raises SpoiltSum where the sum cannot be one of so many updates: a helper or a device has lied.
    """
    values, sums = total.values.view(np.int32), total.sums.view(np.int64)
    checks = values[len(values) - CHECKS :]
    if not (checks == group.devices).all():
        raise SpoiltSum(f"the sum is of {checks.tolist()} devices, expected {group.devices} four times")
    tensors = dict(_means(values, layout, group))
    numbers = dict(_read_sums(sums, layout, group))
    most = group.most_weight
    for name in capabilities.summed(strategy):
        if name in numbers:
            tensors[name] = np.asarray(numbers[name] * most, np.float64)
    share = float(numbers[LOSS_KNOWN][0]) if LOSS_KNOWN in numbers else 0.0
    loss = float(numbers[LOSS][0]) / share if share > 0 else nan
    update = Update(strategy.name, tensors, group.num_examples, loss, strategy.variant)
    return OpenedSum(update, _read_statistics(numbers, layout, most))


def _means(
    values: NDArray[np.int32], layout: SumLayout, group: SummedGroup
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    at, square, rounding = 0, 0.0, 0.0
    for part in layout.tensors:
        total = values[at : at + part.size].astype(np.float64).reshape(part.shape) * 2.0**-part.exponent
        step = group.devices * 2.0**-part.exponent
        _check_possible(part.name, total, group.share * part.bound + step, group)
        square, rounding = square + float(np.square(total).sum()), rounding + part.size * step**2
        mean = total / group.share
        yield part.name, (mean if part.base is None else part.base + mean).astype(np.float32)
        at += part.size
    most = group.share * group.most_norm * (1 + 1e-6) + rounding**0.5
    most += group.deviation * (at**0.5 + NOISE_REACH)
    if group.most_norm and square**0.5 > most:
        raise SpoiltSum(
            f"the sum has norm {square**0.5:.4g}, {group.devices} devices make {most:.4g} at most"
        )


def _read_sums(
    sums: NDArray[np.int64], layout: SumLayout, group: SummedGroup
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    at = 0
    for part in layout.sums:
        values = sums[at : at + part.size].astype(np.float64).reshape(part.shape) * 2.0**-part.exponent
        _check_possible(part.name, values, group.devices * 2.0**part.bound_bits, group)
        step = group.devices * 2.0**-part.exponent
        if part.name in _NEVER_NEGATIVE and (values < -step).any():
            raise SpoiltSum(f"the sum of {part.name} holds {values.min():.4g}, expected 0 or more")
        yield part.name, values
        at += part.size


def _check_possible(name: str, total: NDArray[np.float64], largest: float, group: SummedGroup) -> None:
    """Raises SpoiltSum where a sum is larger than so many devices can make; under a wrong mask it is."""
    most = largest * (1 + 1e-6) + NOISE_REACH * group.deviation
    if (np.abs(total) > most).any():
        worst = float(np.abs(total).max())
        raise SpoiltSum(
            f"the sum of {name} holds {worst:.4g}, {group.devices} devices make {most:.4g} at most"
        )


def _read_statistics(
    numbers: Mapping[str, NDArray[np.float64]], layout: SumLayout, most: int
) -> Statistics | None:
    if layout.statistics is None:
        return None
    sums = ClassSums(most * numbers[SUMS], _whole(most * numbers[COUNTS]))
    none = Statistics.none(*sums.sums.shape)
    right = _whole(most * numbers[RIGHT]) if RIGHT in numbers else none.right
    if MOMENTS not in numbers:
        return Statistics(sums, none.moment_sums, none.moments, right)
    upper = none.moments
    upper[np.triu_indices(len(upper))] = most * numbers[MOMENTS]
    moments = np.triu(upper) + np.triu(upper, 1).T
    of_moments = ClassSums(most * numbers[MOMENT_SUMS], _whole(most * numbers[MOMENT_COUNTS]))
    return Statistics(sums, of_moments, moments, right)


def _whole(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rounds counts that are nearly whole, as fixed point leaves them; others stay."""
    nearest = np.rint(counts)
    return np.where(np.abs(counts - nearest) < 1e-3, nearest, counts)
