"""Bounds what one device's class statistics can do to the pool, by those of the others and by the pool.

It is always on, and needs no setting. What lies within the bounds stays bit for bit. n_ic and mu_ic are the
counts and class means of device i, S_i its mean scatter within classes, d the number of features:

    size       sum_c n_ic is at most SIZE times the upper quartile of the devices'
    class      n_ic is at most CLASS times the sum of the others' and the pool's, or a usual device's size,
               if LEAST devices hold the class, with the pool
    mean       |mu_ic - m_c|^2 <= TIMES^2 (tau^2 + noise_ic + drift^2): one further away is moved to the
               bound. m_c, tau, noise_ic and the metric: `centres`
    alone      a class of one device, new to the pool: within WIDE times the usual distance from the middle
               of all means
    device     nothing of a device counts whose squared distances are, in the mean over its classes, MOSTLY
               of the bound or more, where LEAST voices are compared: its counts would be false too
    scatter    none of S_i counts if tr(R^-1 S_i) is not within TRACE (1 + 1 / sqrt(n_i))^2 times the usual,
               and as many parts of it; else -R <= S_i <= SCATTER (1 + sqrt(d / n_i))^2 R as matrices;
               R: the shrunk scatter of all others
    held out   the share of samples by which a device finds the trained head better is at most the next
               highest of the others', and at least the next lowest

Means of strata, which stand for classes where targets are in columns, differ more between honest devices: a
stratum holds all samples whose targets have about the same mean. Of these tau is the upper quartile over
devices, or the value below it, which a quarter of the devices does not choose.

drift: how far the pool's means are from new ones, where those are compared, and how far means of an earlier
round are. The limit on S_i has the largest eigenvalue of the scatter of n_i samples as its factor (Marchenko
and Pastur 1967). In rounds of fewer than LEAST devices the usual numbers of earlier rounds apply; they are in
the pool. Where there are neither, nothing is compared.

The mean of values that are clipped about a center: Learning from history for Byzantine robust optimization
(2021). Ours: that the bound is the noise of the samples that a device measured, the bounds on counts and
scatter, and the rules for classes of one device, which must keep its voice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from .centres import (
    LEAST,
    Metric,
    centres_of,
    class_means,
    distances_to,
    is_positive,
    median_of_devices,
    sample_noise,
    shrunk,
    upper_quartile,
    without_negative,
)
from .class_statistics import Statistics, StatisticsFile, StatisticsSource
from .class_sums import ClassSums

SIZE = 3.0
"""The largest size of a device, in multiples of the upper quartile."""
CLASS = 3.0
"""The most samples of a class that LEAST devices hold, in multiples of all others'."""
TIMES = 2.5
"""The largest distance of a mean from its centre, in multiples of the usual one."""
WIDE = 3.0
"""The largest distance from the middle of all means, and the largest trace, in usual ones."""
TRACE = 2.0
"""The largest scatter over all directions, in multiples of the others'; beyond it none of it counts."""
SCATTER = 3.0
"""The largest scatter in any direction, in multiples of the others'."""
FAR = 1.5
"""Bounded second moments are noted if they had so many times the scatter; single directions always vary."""
ENOUGH = 2
"""Samples of others for each feature of which their scatter is known; with fewer the bound grows."""
MOSTLY = 0.5
"""The least mean of squared distances, relative to their bounds, at which a device does not count."""
ROUNDS = 8
"""Rounds whose usual numbers are remembered."""
FIGURES = 4
"""Numbers that are remembered of each round: size, spread, drift and scatter."""
UNKNOWN = -1.0
"""What is remembered in place of a number that a round does not give."""


def no_rounds() -> NDArray[np.float64]:
    """The usual numbers of no rounds, float64 (0, FIGURES)."""
    return np.zeros((0, FIGURES))


@dataclass(frozen=True)
class Usual:
    """The usual numbers of a round: inf where nothing is known, so that nothing is bounded by it.

    size: the upper quartile of the devices' samples. spread: the usual distance of a class mean from its
    centre, beyond noise. drift: that of the means from the pool's. scatter: the usual trace of the mean
    scatter.
    """

    size: float = inf
    spread: float = inf
    drift: float = inf
    scatter: float = inf

    @classmethod
    def of(cls, own: Usual, rounds: NDArray[np.float64]) -> Usual:
        """The numbers that apply: the round's own, or else the medians over earlier rounds (n, FIGURES)."""
        numbers = []
        for value, before in zip(own.numbers(), rounds.T, strict=True):
            history = before[before >= 0]
            numbers.append(value if isfinite(value) or not history.size else float(np.median(history)))
        return cls(*numbers)

    def numbers(self) -> tuple[float, float, float, float]:
        return self.size, self.spread, self.drift, self.scatter


def largest_size(sizes: Sequence[float], rounds: NDArray[np.float64]) -> float:
    """The most samples that a device counts for in a round of devices of these sizes; inf if none is known.

    It is no less than SIZE, as devices of an own kind may have no samples. `rounds`: the usual numbers of
    earlier rounds.
    """
    if not sizes:
        return inf
    return SIZE * max(1.0, Usual.of(Usual(size=_quartile(sizes)), rounds).size)


class StatisticsBounds:
    """The bounds of one round, from the statistics that all devices sent and the pool before it.

    rounds: the usual numbers of this round and earlier ones, (n, FIGURES), for the next round's bounds.
    note: what was bounded, once `bounded` has yielded all; empty for nothing.
    """

    def __init__(
        self, sent: StatisticsFile, pool: Statistics, rounds: NDArray[np.float64], strata: bool = False
    ) -> None:
        """`rounds` is that of the round before; `strata`: of targets in columns stand for classes."""
        self._sent, self._pool = sent, pool
        self._fewer = self._moved = self._narrowed = self._left_out = 0
        traces = [trace for device in sent if (trace := _trace(device)) is not None]
        own = Usual(
            size=_quartile([source.size for source in sent.sources]), scatter=median_of_devices(traces)
        )
        self._usual = Usual.of(own, rounds)
        self._scatter, self._scattered = self._all_scatter()
        self._ratios: list[float] = []
        self._centres = centres_of(sent, pool)
        metrics = self._metrics(len(traces) + bool(pool.moment_sums.counts.any()) > 1)
        distances = distances_to(self._centres, sent, pool, metrics)
        sample = sample_noise(distances)
        self._distances = [d if isfinite(d.sample) else replace(d, sample=sample) for d in distances]
        judged = [d for d in self._distances if d.judged.any() and isfinite(d.sample)]
        spreads = [device.spread for device in judged]
        own = replace(
            own,
            spread=_quartile(spreads, lower=True) if strata else median_of_devices(spreads),
            drift=median_of_devices([d.drift for d in self._distances if isfinite(d.drift)]),
            scatter=own.scatter if isfinite(own.scatter) else sample,
        )
        self._usual = Usual.of(own, rounds)
        remembered = [value if isfinite(value) else UNKNOWN for value in own.numbers()]
        self.rounds = np.concatenate([rounds, [remembered]])[-ROUNDS:]
        self._leads = self._all_leads()
        self._totals, self._holders = self._all_counts()
        usual_ratio = median_of_devices([ratio for ratio in self._ratios if ratio >= 0])
        self._counted = [self._counts(number) for number in range(len(sent))]
        self._odd = [
            isfinite(usual_ratio) and not self._is_likely(device, ratio / max(1e-300, usual_ratio))
            for device, ratio in zip(sent, self._ratios, strict=True)
        ]
        for counted, odd, source, device in zip(self._counted, self._odd, sent.sources, sent, strict=True):
            if (odd or not counted) and device.moment_sums.counts.any():
                part, count = self._limited(device, source)
                self._scatter, self._scattered = self._scatter - part, self._scattered - count

    @property
    def note(self) -> str:
        counts = {
            "sizes": self._fewer,
            "class means": self._moved,
            "second moments": self._narrowed,
            "all (they do not count)": self._left_out,
        }
        parts = [f"{what} of {count} device{'s'[: count > 1]}" for what, count in counts.items() if count]
        return f"statistics far from the others' are bounded: {', '.join(parts)}" if parts else ""

    def bounded(self) -> Iterator[Statistics]:
        """Each device's statistics within the bounds, in order; unchanged objects where they are."""
        for number, device in enumerate(self._sent):
            self._left_out += not self._counted[number]
            if self._counted[number]:
                yield self._within(number, device)
            else:
                yield Statistics.none(*device.sums.sums.shape)

    def _within(self, number: int, device: Statistics) -> Statistics:
        source = self._sent.sources[number]
        bounded = _with_means(device, self._near(number, device))
        if bounded is not device:
            self._moved += 1
        if self._odd[number]:
            nothing = Statistics.none(*device.sums.sums.shape)
            bounded = replace(bounded, moment_sums=nothing.moment_sums, moments=nothing.moments)
            self._narrowed += 1
        elif (scatter := self._possible(bounded, *self._limited(device, source))) is not None:
            bounded = _with_scatter(bounded, scatter)
        if (right := self._right(device.right)) is not device.right:
            bounded = replace(bounded, right=right)
        share = self._share(source)
        if share < 1:
            bounded = bounded.decayed(share)
        most = self._most(device, source)
        if (bounded.sums.counts > most).any():
            bounded = _with_shares(bounded, np.minimum(1, most / np.maximum(1e-9, bounded.sums.counts)))
            share = 0.0
        self._fewer += share < 1
        return bounded

    def _share(self, source: StatisticsSource) -> float:
        """The share of a device's samples that it counts for, by its size."""
        return min(1.0, SIZE * self._usual.size / source.size)

    def _all_counts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Of each class the samples of all devices, by their sizes, and the pool's; and how many hold it."""
        totals, holders = self._pool.sums.counts.astype(np.float64), (self._pool.sums.counts > 0).astype(int)
        for source, device in zip(self._sent.sources, self._sent, strict=True):
            totals = totals + self._share(source) * device.sums.counts
            holders = holders + (device.sums.counts > 0)
        return totals, holders

    def _most(self, device: Statistics, source: StatisticsSource) -> NDArray[np.float64]:
        """The most samples of each class that a device counts for, (classes,)."""
        counts = device.sums.counts
        times = max(1.0, float(counts.sum()) / source.size)
        others = self._totals - self._share(source) * counts
        return np.where(self._holders < LEAST, inf, times * np.maximum(self._usual.size, CLASS * others))

    def _metrics(self, has_scatter: bool) -> Iterator[Metric]:
        """The metric for each device: the scatter of the others, or none; notes the ratio of its own."""
        unknown = Metric(np.eye(self._sent.width), self._usual.scatter)
        for source, device in zip(self._sent.sources, self._sent, strict=True):
            part, count = self._limited(device, source)
            metric = Metric.of(self._scatter - part, self._scattered - count) if has_scatter else None
            self._ratios.append(_scatter_ratio(device, metric) if metric else -1.0)
            yield metric or unknown

    def _is_likely(self, device: Statistics, ratio: float) -> bool:
        """Whether the size of a device's scatter is likely; `ratio`: to the usual size, below 0 for none."""
        most = TRACE * (1 + sqrt(1 / max(1.0, _free(device)))) ** 2
        return ratio < 0 or 1 / most <= ratio <= most

    def _squared_reach(self, number: int) -> NDArray[np.float64]:
        """How far from its centre each class's mean may be, squared, (n,); inf if that is not known."""
        usual, source, distances = self._usual, self._sent.sources[number], self._distances[number]
        moved = (source.late * usual.drift) ** 2 if source.late else 0.0
        of_pool = np.where(self._centres.of_pool[distances.labels], usual.drift**2, 0)
        noise = usual.spread**2 + distances.sample * distances.noise
        reach: NDArray[np.float64] = TIMES**2 * (noise + moved + of_pool)
        return reach

    def _counts(self, number: int) -> bool:
        """Whether a device counts: not if its means are mostly too far where LEAST voices are compared."""
        judged = self._distances[number].judged
        share = self._distances[number].squares / np.maximum(1e-300, self._squared_reach(number))
        return not judged.any() or float(np.minimum(1, share[judged]).mean()) < MOSTLY

    def _near(self, number: int, device: Statistics) -> NDArray[np.float64]:
        """The class means within the bounds (classes, width)."""
        centres, means = self._centres, class_means(device.sums)
        distances, reach = self._distances[number], self._squared_reach(number)
        wide = (device.sums.counts > 0) & (_lengths(means - centres.middle) > WIDE * centres.radius)
        wide[distances.labels[np.isfinite(reach)]] = False
        means = _pulled(means, wide, centres.middle, np.full(len(means), WIDE * centres.radius))
        if (far := distances.squares > reach).any():
            means, labels = means.copy(), distances.labels[far]
            factor = np.sqrt(reach[far] / distances.squares[far])[:, None]
            means[labels] = centres.means[labels] + factor * (means[labels] - centres.means[labels])
        return means

    def _all_leads(self) -> tuple[float, float]:
        """The second lowest and the second highest lead of the trained head by held-out samples."""
        rights = [device.right for device in self._sent if device.right[0]]
        leads = sorted((trained - closed) / count for count, closed, trained in rights)
        return (leads[1], leads[-2]) if len(leads) >= LEAST else (-1.0, 1.0)

    def _right(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        """The counts of held-out samples with the lead of the trained head within the others'."""
        count, closed, trained = right.tolist()
        own, (lowest, highest) = (trained - closed) / max(1.0, count), self._leads
        lead = min(max(own, lowest), highest)
        if not count or lead == own:
            return right
        return np.array([count, closed, closed + lead * count])

    def _all_scatter(self) -> tuple[NDArray[np.float64], float]:
        """The sum of scatter over the pool and all devices, with their samples."""
        total, samples = _scatter(self._pool), float(self._pool.moment_sums.counts.sum())
        for source, device in zip(self._sent.sources, self._sent, strict=True):
            part, count = self._limited(device, source)
            total, samples = total + part, samples + count
        return total, samples

    def _limited(self, device: Statistics, source: StatisticsSource) -> tuple[NDArray[np.float64], float]:
        """The scatter of a device as it counts in bounds of others, and the number of its samples."""
        if not device.moment_sums.counts.any():
            return np.zeros_like(device.moments), 0.0
        part, count = _scatter(device), float(device.moment_sums.counts.sum())
        most = WIDE * self._usual.scatter * count
        if np.linalg.norm(part) > most:  # also of long means, whose rounding makes scatter below 0
            part = without_negative(part)
            part = part * (most / max(most, float(np.trace(part))))
        share = self._share(source)
        return part * share, share * count

    def _possible(
        self, device: Statistics, part: NDArray[np.float64], own: float
    ) -> NDArray[np.float64] | None:
        """The scatter within the bounds, (width, width); None if it is, or nothing is known of others'.

        part, own: the device's share of the sum over all, and its number of samples in it.
        """
        count, width = float(device.moment_sums.counts.sum()), len(device.moments)
        others = self._scattered - own
        reference = self._scatter - part
        if not count or others < 1 or not np.trace(reference) > 0:
            return None
        reference = shrunk(without_negative(reference / others), others)
        most = SCATTER * (1 + sqrt(width / count)) ** 2 * max(1.0, ENOUGH * width / others)
        sent = _scatter(device) / count
        fits = is_positive(most * reference - sent)
        if fits and is_positive(reference + sent):  # rounded means of few samples give less than 0
            return None
        squares, axes = np.linalg.eigh(reference)
        lengths = np.sqrt(squares.clip(1e-9 * squares[-1]))
        values, vectors = np.linalg.eigh(axes.T @ sent @ axes / np.outer(lengths, lengths))
        half: NDArray[np.float64] = axes * lengths @ vectors
        bounded: NDArray[np.float64] = (half * values.clip(-1, most)) @ half.T
        self._narrowed += float(np.trace(sent)) > FAR * float(np.trace(bounded))
        return bounded * count


def _lengths(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    lengths: NDArray[np.float64] = np.linalg.norm(rows, axis=1)
    return lengths


def _pulled(
    means: NDArray[np.float64],
    which: NDArray[np.bool_],
    about: NDArray[np.float64],
    reach: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The means with those of `which` moved to the distance `reach` (classes,) from `about`."""
    if not which.any():
        return means
    apart = means - about
    factor = reach[which] / _lengths(apart)[which]
    moved: NDArray[np.float64] = means.copy()
    moved[which] = np.broadcast_to(about, means.shape)[which] + apart[which] * factor[:, None]
    return moved


def _scatter(device: Statistics) -> NDArray[np.float64]:
    """The sum of scatter within classes, (width, width), of the samples that have second moments."""
    means = class_means(device.moment_sums)
    scatter: NDArray[np.float64] = device.moments - (means * device.moment_sums.counts[:, None]).T @ means
    return scatter


def _trace(device: Statistics) -> float | None:
    """The trace of the mean scatter within classes; None without second moments."""
    counts = device.moment_sums.counts
    if not counts.any():
        return None
    squares = np.square(class_means(device.moment_sums)).sum(axis=1)
    return max(0.0, float(np.trace(device.moments) - squares @ counts) / float(counts.sum()))


def _with_means(device: Statistics, means: NDArray[np.float64]) -> Statistics:
    """The statistics with these class means, and the same scatter."""
    before, counts = class_means(device.sums), device.sums.counts
    if np.array_equal(means, before):
        return device
    n = device.moment_sums.counts
    shifted = class_means(device.moment_sums) + means - before
    moments = _scatter(device) + (shifted * n[:, None]).T @ shifted
    sums, moment_sums = (ClassSums(m * c[:, None], c) for m, c in ((means, counts), (shifted, n)))
    return replace(device, sums=sums, moment_sums=moment_sums, moments=moments)


def _with_shares(device: Statistics, shares: NDArray[np.float64]) -> Statistics:
    """The statistics with these shares of each class's samples (classes,), and the same means and scatter."""
    counts, means = device.moment_sums.counts, class_means(device.moment_sums)
    scatter = _scatter(device) * float(shares @ counts) / max(1e-9, float(counts.sum()))
    sums, moment_sums = (
        ClassSums(s.sums * shares[:, None], s.counts * shares) for s in (device.sums, device.moment_sums)
    )
    moments = scatter + (means * moment_sums.counts[:, None]).T @ means
    return replace(device, sums=sums, moment_sums=moment_sums, moments=moments)


def _free(device: Statistics) -> float:
    """The samples that have second moments beyond one for each class."""
    counts = device.moment_sums.counts
    return float(counts.sum()) - float((counts > 0).sum())


def _scatter_ratio(device: Statistics, metric: Metric) -> float:
    """The scatter of a device's samples, in multiples of the others'; -1 if it sent none."""
    if _free(device) < 1:
        return -1.0
    whitened = metric.whitening @ _scatter(device)
    return max(0.0, float((whitened * metric.whitening).sum())) / _free(device) / metric.noise


def _with_scatter(device: Statistics, scatter: NDArray[np.float64]) -> Statistics:
    """The statistics with this sum of scatter (width, width) of all samples that had second moments."""
    counts, means = device.moment_sums.counts, class_means(device.moment_sums)
    return replace(device, moments=scatter + (means * counts[:, None]).T @ means)


def _quartile(values: Sequence[float], lower: bool = False) -> float:
    """The upper quartile over devices, as `upper_quartile`; inf for fewer than LEAST."""
    return upper_quartile(values, lower) if len(values) >= LEAST else inf
