"""The robust rules for updates, and their settings: median, trimmed mean, value and norm clipping, Krum.

Median (Yin et al. 2018, Byzantine-robust distributed learning, definition 1): with fewer lying devices than
honest ones it is between the values of honest devices, however large a false value is. The weighted median
does so as long as lying devices have less than half of the weight.

Trimmed mean (same paper, definition 2): the largest and the smallest values are ignored, a share `trim` at
either end; the rest is averaged. It withstands as many lying devices as are ignored at one end.

Value clipping (one step of Huber 1964): each value is held within a bound around the median. The spread
of a value is its median distance from the median over the devices, times 1.4826: a normal distribution's
standard deviation. The mean of values held within `factor` spreads is nearly as exact as the plain mean
when all are honest, and a lying device moves it by at most `factor` spreads. With a stated bound, values
are held within that bound of where they started.

Norm clipping (Sun et al. 2019, Can you really backdoor federated learning?, section 4.2): an update whose
change d of the base w is longer than a bound is shortened to w + d min(1, bound / |d|), so that a lying
device moves the mean no further than an honest one can. The direction of d is not checked.

Krum and Multi-Krum (Blanchard et al. 2017, Machine learning with adversaries, sections 4 and 6): of n
updates, of which f may be false, each is scored by the sum of its squared distances to the n - f - 2
nearest others. Krum takes the update with the smallest score, Multi-Krum the mean of the n - f with the
smallest scores. Both need n >= 2 f + 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.tensors import Vector
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.settings import Setting

from .spool import BUDGET, Spool

PIECE = 1 << 18
"""Values that are sorted at a time."""
ROUNDING = 1e-12
"""Relative tolerance within which a sum of weights counts as half of their total."""
NORMAL = 1.4826
"""A normal's standard deviation by its median absolute deviation."""


def median(values: Vector) -> Vector:
    """The median: float32 (devices, values) -> (values,); for an even number, the mean of the middle two."""
    half, odd = divmod(len(values), 2)
    if odd:
        middle: Vector = np.partition(values, half, axis=0)[half]
        return middle
    parted = np.partition(values, (half - 1, half), axis=0)
    mean: Vector = ((parted[half - 1].astype(np.float64) + parted[half]) / 2).astype(np.float32)
    return mean


def weighted_median(values: Vector, weights: Sequence[float]) -> Vector:
    """The weighted median: float32 (devices, values) -> (values,); `weights` (devices,).

    Half of the weight is below it and half above. If exactly half of the weight is at or below a value, it is
    the mean of that value and the next. Works on PIECE values at a time: sorting takes 24 more bytes for each
    value.
    """
    step = max(1, PIECE // len(values))
    parts = (values[:, begin : begin + step] for begin in range(0, values.shape[1], step))
    whole: Vector = np.concatenate([_weighted(part, np.asarray(weights, np.float64)) for part in parts])
    return whole


def _weighted(values: Vector, weights: NDArray[np.float64]) -> Vector:
    order = np.argsort(values, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0)
    half = reached[-1] / 2
    low = (reached >= half * (1 - ROUNDING)).argmax(axis=0)
    high = (reached > half * (1 + ROUNDING)).argmax(axis=0)
    ordered = np.take_along_axis(values, order, axis=0)
    ends = (np.take_along_axis(ordered, place[None], axis=0)[0].astype(np.float64) for place in (low, high))
    mean: Vector = (sum(ends) / 2).astype(np.float32)
    return mean


def trim_count(devices: int, share: float) -> int:
    """The number of values ignored at either end: at least this share, but one value always remains."""
    return min(ceil(share * devices - 1e-9), (devices - 1) // 2)


def trimmed_mean(values: Vector, share: float) -> Vector:
    """The trimmed mean: float32 (devices, values) -> (values,), summed in float64, the smallest first."""
    cut = trim_count(len(values), share)
    ordered = np.sort(values, axis=0)
    mean: Vector = ordered[cut : len(values) - cut].mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


@dataclass(frozen=True)
class Bounds:
    """The range `middle` +- `reach` that values are clipped to; both float32 (values,)."""

    middle: Vector
    reach: Vector

    def hold(self, values: Vector) -> Vector:
        """The values clipped, float32 (values,)."""
        inside: Vector = np.clip(values, self.middle - self.reach, self.middle + self.reach)
        return inside

    def is_far(self, values: Vector, times: float) -> bool:
        """Whether half of the values or more are further from `middle` than `times` the reach."""
        if not values.size:
            return False
        return bool(np.mean(np.abs(values - self.middle) > times * self.reach) >= 0.5)


def bounds_in(spool: Spool, fixed: float | None, factor: float) -> Bounds:
    """The bounds of every value: `fixed` around its start, or `factor` spreads around its median."""
    if fixed is not None:
        return Bounds(spool.starts, np.full_like(spool.starts, fixed))
    middle, reach = np.empty_like(spool.starts), np.empty_like(spool.starts)
    for where, values in spool.blocks():
        about = bounds(values, factor)
        middle[where], reach[where] = about.middle, about.reach
    return Bounds(middle, reach)


def bounds(values: Vector, factor: float) -> Bounds:
    """The bounds `factor` spreads around the median of values (devices, values)."""
    middle = median(values)
    with np.errstate(over="ignore"):  # false values can be further apart than a float32 holds
        reach: Vector = median(np.abs(values - middle)) * np.float32(factor * NORMAL)
    return Bounds(middle, reach)


def norms(spool: Spool) -> NDArray[np.float64]:
    """The Euclidean length of each update's change from its start, float64 (devices,)."""
    squares = np.zeros(len(spool))
    for where, values in spool.blocks():
        start = spool.starts[where].astype(np.float64)
        for place, row in enumerate(values):
            change = row - start
            squares[place] += change @ change
    return np.sqrt(squares)


def bound_of(lengths: NDArray[np.float64] | Sequence[float], fixed: float | None, factor: float) -> float:
    """The fixed bound; if it is None, `factor` times the median length."""
    return float(np.median(lengths)) * factor if fixed is None else fixed


def clip_to_norm(values: Vector, start: Vector, length: float, bound: float) -> Vector:
    """Values float32 (values,) at most `bound` from `start`; `length` is how far they are now."""
    if length <= bound:
        return values
    change = values.astype(np.float64) - start
    change *= bound / length
    change += start
    return change.astype(np.float32)


def length_of(values: Vector) -> float:
    """The Euclidean norm."""
    return float(np.linalg.norm(values.astype(np.float64)))


def most_liars(devices: int) -> int:
    """The largest f that n = `devices` updates withstand; below 0 for fewer than three updates."""
    return (devices - 3) // 2


def selected(scores: NDArray[np.float64], many: int) -> list[int]:
    """The indices of the `many` smallest scores, in rising order; of equal scores the first."""
    return sorted(np.argsort(scores, kind="stable")[:many].tolist())


def krum_scores(spool: Spool, liars: int) -> NDArray[np.float64]:
    """The score of each update, float64 (devices,); `liars` is f, and n at least f + 3.

    Distances are computed for as many devices at a time as fit BUDGET, from products of the changes, summed
    over pieces of the model. Memory grows with the number of devices, not with the model.
    """
    count = len(spool)
    nearest = count - liars - 2
    step = max(1, BUDGET // (8 * count))
    totals = np.empty(count)
    for begin in range(0, count, step):
        end = min(begin + step, count)
        distances = _distances(spool, slice(begin, end), step)
        distances[np.arange(end - begin), np.arange(begin, end)] = np.inf  # not to itself
        near = np.partition(distances, nearest - 1, axis=1)[:, :nearest]
        totals[begin:end] = np.sort(near, axis=1).sum(axis=1)
    return totals


def _distances(spool: Spool, some: slice, width: int) -> NDArray[np.float64]:
    """Squared distances of some updates to all, |a|^2 + |b|^2 - 2 a b of their changes: (some, devices)."""
    count = len(spool)
    products = np.zeros((some.stop - some.start, count))
    squares = np.zeros(count)
    for where, values in spool.blocks(width=width):
        changes = values.astype(np.float64) - spool.starts[where]
        products += changes[some] @ changes.T
        squares += np.einsum("ij,ij->i", changes, changes)
    distances: NDArray[np.float64] = np.maximum(squares[some, None] + squares - 2 * products, 0)
    return distances


Rule = Literal[
    "none", "median", "weighted-median", "trimmed-mean", "norm-clip", "value-clip", "krum", "multi-krum"
]  # fmt: skip
RULES: tuple[str, ...] = get_args(Rule)
LEAST_DEVICES = 3
"""The least number of updates in a group for a rule to detect false updates."""


Trim = Annotated[
    float,
    Setting(
        "Ignore this share of the values at either end, with trimmed-mean.",
        0.1,
        more_than=0,
        less_than=0.5,
        metavar="SHARE",
    ),
]
Clip = Annotated[
    float | None,
    Setting(
        "Clip longer changes, with norm-clip, or larger values, with value-clip.",
        example=1.0,
        more_than=0,
        none="by the clip factor",
        metavar="NORM",
    ),
]
ClipFactor = Annotated[
    float, Setting("Clip at X times the round's median, with norm-clip and value-clip.", 2.0, more_than=0)
]
Byzantine = Annotated[
    int | None,
    Setting(
        "Withstand this many lying devices, with krum and multi-krum.",
        2,
        "devices",
        at_least=0,
        none="the most possible",
    ),
]


@dataclass(frozen=True)
class Robust:
    """The robust rule of a task, for all kinds of update; "none" is the plain mean.

    trim: the share of values that trimmed-mean ignores at either end, more than 0 and less than 0.5.
    clip: for norm-clip, the largest change of the base that passes (Euclidean, over all tensors). None, and
    for scalars and class means, which do not change the base: clip_factor times the median update's. For
    value-clip, the largest change of any one value, for all kinds; None: clip_factor times the spread of the
    round's values around their median.
    byzantine: how many lying devices krum and multi-krum must withstand; None: as many as they can of the n
    that sent updates, (n - 3) // 2.
    Raises ValueError for numbers outside the limits.
    """

    rule: Rule = "none"
    trim: Trim = 0.2
    clip: Clip = None
    clip_factor: ClipFactor = 1.0
    byzantine: Byzantine = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"no rule of merging is called {self.rule!r}; there are {', '.join(RULES)}")
        ranges.check(self)
