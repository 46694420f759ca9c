"""Writes updates as integers whose sums can be read again (fixed point).

A float x becomes rint(x 2^e). The exponent e is the largest with which the sum of `capacity` devices stays
within half of the integers' range, where |x| is at most a bound that both ends know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import frexp, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.broker.wire.messages import Masks
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.strategies.errors import MaskError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.device_half import MOST_LOSS
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.statistics import class_statistics, class_sums, held_out, kind_statistics

CHECKS = 4
"""Values of 1 at the end of each device's vector: their sums are the number of devices."""
LEAST_BOUND = 1.0
"""The least bound on a change of a weight; larger where the base has larger weights."""
TIMES_BASE = 4.0
"""A change of a weight may be so many times the largest weight of the base's tensor."""
OTHER_BOUND = 1024.0
"""The bound on numbers that are no change of the base, such as zeroth-order scalars."""
_FEATURE_BOUND = class_sums.MOST_NORM


def bits(bound: float) -> int:
    """The smallest k with 2^k >= bound, for a bound of more than 0."""
    mantissa, exponent = frexp(bound)
    return exponent - 1 if mantissa == 0.5 else exponent


@dataclass(frozen=True)
class TensorPart:
    """One tensor of the vector's values; `base` is None where it is no change of the base's tensor."""

    name: str
    shape: tuple[int, ...]
    bound: float
    exponent: int
    base: NDArray[Any] | None

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class SumPart:
    """Numbers of the vector's sums: `size` of them, each at most 2^bound_bits."""

    name: str
    shape: tuple[int, ...]
    bound_bits: int
    exponent: int

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class SumLayout:
    """The places and the fixed point of all numbers of an update of one kind and form.

    tensors: changes of weights, in the vector's values; CHECKS follow.
    sums: the loss, the share of the weight with a known loss, class statistics, and tensors that add up as
    they are; in the vector's sums.
    """

    tensors: tuple[TensorPart, ...]
    sums: tuple[SumPart, ...]
    statistics: ClassStatistics | None

    @cached_property
    def values(self) -> int:
        """Length of the vector's values."""
        return sum(part.size for part in self.tensors) + CHECKS

    @cached_property
    def numbers(self) -> int:
        """Length of the vector's sums."""
        return sum(part.size for part in self.sums)

    @cached_property
    def exponents(self) -> tuple[tuple[int, int], ...]:
        """The number of values of each fixed-point exponent, in order; neighbours that are equal are one."""
        runs = groupby(self.tensors, lambda part: part.exponent)
        return tuple((sum(part.size for part in parts), exponent) for exponent, parts in runs)

    @property
    def content_bytes(self) -> int:
        """Bytes of a masked update."""
        return 4 * self.values + 8 * self.numbers

    @property
    def signature(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Equal for updates that can be summed together."""
        tensors = tuple((part.name, part.shape) for part in self.tensors)
        return tensors + tuple((part.name, part.shape) for part in self.sums)


LOSS, LOSS_KNOWN = "loss", "loss-known"
SUMS, COUNTS, RIGHT = "statistics/sums", "statistics/counts", "statistics/right"
MOMENT_SUMS, MOMENT_COUNTS, MOMENTS = "moments/sums", "moments/counts", "moments/upper"


def layout_of(strategy: AnyStrategy, manifest: Manifest, base: Tensors, masks: Masks) -> SumLayout:
    """The layout of updates of this form, made from `base`: that of the strategy's member and round.

    With central noise there are no sums, as nothing of them would be hidden. Raises MaskError for a kind that
    needs them then.
    """
    spare, expected = bits(masks.capacity), strategy.expected(manifest)
    summed = capabilities.summed(strategy)
    added = [(spec.name, spec.shape, _FEATURE_BOUND) for spec in expected if spec.name in summed]
    if masks.noise_milli and (added or kind_statistics.statistics_of(strategy)):
        what = ", ".join(name for name, *_ in added) or "class statistics"
        raise MaskError(f"{strategy.name} sends {what}, to which central noise is not added")
    sums: list[Bounded] = [
        (LOSS, (1,), MOST_LOSS),
        (LOSS_KNOWN, (1,), 1.0),
        *added,
        *_statistics_parts(strategy, manifest),
    ]
    return SumLayout(
        tuple(
            _tensor_part(spec.name, spec.shape, base, 30 - spare)
            for spec in expected
            if spec.name not in summed
        ),
        tuple(
            SumPart(name, shape, bits(bound), 62 - spare - bits(bound))
            for name, shape, bound in (() if masks.noise_milli else sums)
        ),
        kind_statistics.statistics_of(strategy),
    )


def _tensor_part(name: str, shape: Sequence[int], base: Tensors, room: int) -> TensorPart:
    start = base.get(name)
    if start is None or start.shape != tuple(shape):
        return TensorPart(name, tuple(shape), OTHER_BOUND, room - bits(OTHER_BOUND), None)
    largest = float(np.abs(start).max(initial=0.0))
    bound = 2.0 ** bits(max(LEAST_BOUND, TIMES_BASE * largest))
    return TensorPart(name, tuple(shape), bound, room - bits(bound), start)


Bounded = tuple[str, tuple[int, ...], float]
"""Name, shape and bound of numbers in the vector's sums."""


def _statistics_parts(strategy: AnyStrategy, manifest: Manifest) -> list[Bounded]:
    spec = kind_statistics.statistics_of(strategy)
    if spec is None:
        return []
    labels, width = class_statistics.shape_of(spec, manifest)
    parts: list[Bounded] = [
        (SUMS, (labels, width), _FEATURE_BOUND),
        (COUNTS, (labels,), 1.0),
    ]
    if spec.hold_out:
        parts.append((RIGHT, (held_out.COUNTS,), 1.0))
    if spec.moments:
        parts += [
            (MOMENT_SUMS, (labels, width), _FEATURE_BOUND),
            (MOMENT_COUNTS, (labels,), 1.0),
            (MOMENTS, (width * (width + 1) // 2,), _FEATURE_BOUND**2),
        ]
    return parts
