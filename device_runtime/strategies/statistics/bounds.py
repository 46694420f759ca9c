"""Bounds what one device's class statistics can do to the pool, by those of the others and by the pool.

It is always on, and needs no setting. What lies within the bounds stays bit for bit. n_ic and mu_ic are the
counts and class means of device i, S_i its mean scatter within classes, d the number of features:

    size       sum_c n_ic is at most SIZE times the upper quartile of the devices'
    centre     m_c: the coordinate-wise median of the class's means; of one or two devices' beside the pool's
    spread     tau: the median distance of means from their centres; v: the median trace of S_i
    mean       |mu_ic - m_c|^2 <= TIMES^2 (tau^2 + v / n_ic + drift^2): one further away is moved to the bound
    alone      a class of one device, new to the pool: within TIMES times the usual distance from the middle
               of all means
    device     nothing of a device counts whose means are mostly too far from those of at least two others:
               its counts and scatter would be false too
    scatter    -R <= S_i <= SCATTER (1 + sqrt(d / n_i))^2 R as matrices; R: the shrunk scatter of all others
    held out   the share of samples by which a device finds the trained head better is at most the next
               highest of the others', and at least the next lowest

drift: how far the pool's means are from new ones, where those are compared, and how far means of an earlier
round are. The limit on S_i has the largest eigenvalue of the scatter of n_i samples as its factor (Marchenko
and Pastur 1967). In rounds of fewer than LEAST devices the usual numbers of earlier rounds apply; they are in
the pool. Where there are neither, nothing is compared.

The mean of values that are clipped about a center: Learning from history for Byzantine robust optimization
(2021). Ours: that the bound shrinks with the samples of a class, the bound on the scatter, and the rules for
classes of one device, which must keep its voice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from .class_statistics import Statistics
from .class_sums import ClassSums
from .statistics_file import StatisticsFile, StatisticsSource

LEAST = 3
"""The fewest devices, or voices on a class, that are compared with each other."""
SIZE = 3.0
"""The largest size of a device, in multiples of the upper quartile."""
TIMES = 3.0
"""The largest distance of a mean, in multiples of the usual one."""
SCATTER = 3.0
"""The largest scatter in any direction, in multiples of the others'."""
FAR = 1.5
"""Bounded second moments are noted if they had so many times the scatter; single directions always vary."""
ENOUGH = 2
"""Samples of others for each feature of which their scatter is known; with fewer the bound grows."""
SHRINKAGE = 0.1
"""The least weight of the scaled identity in R, as in the head's covariance."""
VOICES = 32
"""The most devices whose means make a centre; of more, evenly many are left out."""
MOSTLY = 0.5
"""The share of a device's compared means from which on, if they are too far, nothing of it counts."""
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
    centre. drift: that of the centres from the pool's. scatter: the usual trace of the mean scatter.
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
            known = before[before >= 0]
            numbers.append(value if isfinite(value) or not known.size else float(np.median(known)))
        return cls(*numbers)

    def numbers(self) -> tuple[float, float, float, float]:
        return self.size, self.spread, self.drift, self.scatter


@dataclass(frozen=True)
class Centres:
    """The centre of each class, float64 (classes, width), and how far from it means usually are.

    voices: how many devices' means, and the pool's, were compared; 0: the class has none.
    of_pool: whether the centre is the pool's mean alone.
    middle, radius: the middle of all class means, and their usual distance from it.
    """

    means: NDArray[np.float64]
    voices: NDArray[np.int64]
    of_pool: NDArray[np.bool_]
    middle: NDArray[np.float64]
    radius: float


def largest_size(sizes: Sequence[float], rounds: NDArray[np.float64]) -> float:
    """The most samples that a device counts for in a round of devices of these sizes; inf if none is known.

    `rounds`: the usual numbers of earlier rounds.
    """
    if not sizes:
        return inf
    return SIZE * Usual.of(Usual(size=_quartile(sizes)), rounds).size


class StatisticsBounds:
    """The bounds of one round, from the statistics that all devices sent and the pool before it.

    rounds: the usual numbers of this round and earlier ones, (n, FIGURES), for the next round's bounds.
    note: what was bounded, once `bounded` has yielded all; empty for nothing.
    """

    def __init__(self, sent: StatisticsFile, pool: Statistics, rounds: NDArray[np.float64]) -> None:
        """`rounds` is that of the round before."""
        self._sent, self._pool = sent, pool
        self._pooled, self._known = class_means(pool.sums), pool.sums.counts > 0
        self._fewer = self._moved = self._narrowed = self._left_out = 0
        sizes = [source.size for source in sent.sources]
        traces = [trace for one in sent if (trace := _trace(one)) is not None]
        first = Usual(size=_quartile(sizes), scatter=_median(traces))
        self._usual = Usual.of(first, rounds)
        self._centres = self._centred()
        spread, noise = self._spread()
        self._leads = self._all_leads()
        own = replace(
            first,
            spread=spread,
            drift=self._drift(),
            scatter=first.scatter if isfinite(first.scatter) else noise,
        )
        self._usual = Usual.of(own, rounds)
        remembered = [value if isfinite(value) else UNKNOWN for value in own.numbers()]
        self.rounds = np.concatenate([rounds, [remembered]])[-ROUNDS:]
        self._counted = [self._counts(*pair) for pair in zip(sent, sent.sources, strict=True)]
        self._scatter, self._scattered = self._all_scatter()

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
        for counted, source, one in zip(self._counted, self._sent.sources, self._sent, strict=True):
            self._left_out += not counted
            yield self._within(one, source) if counted else Statistics.none(*one.sums.sums.shape)

    def _within(self, one: Statistics, source: StatisticsSource) -> Statistics:
        bounded = _with_means(one, self._near(one, source))
        if bounded is not one:
            self._moved += 1
        if (scatter := self._possible(bounded, *self._limited(one, source))) is not None:
            bounded = _with_scatter(bounded, scatter)
        if (right := self._right(one.right)) is not one.right:
            bounded = replace(bounded, right=right)
        most = SIZE * self._usual.size
        if source.size > most:
            bounded, self._fewer = bounded.decayed(most / source.size), self._fewer + 1
        return bounded

    def _centred(self) -> Centres:
        """The centres, from at most VOICES devices a class."""
        labels, holders = self._sent.labels, np.zeros(self._sent.labels, np.int64)
        for one in self._sent:
            holders += one.sums.counts > 0
        voices: list[list[NDArray[np.float32]]] = [[] for _ in range(labels)]
        seen, middles = np.zeros(labels, np.int64), []
        for one in self._sent:
            means, present = class_means(one.sums), one.sums.present
            middles.append(means[present].mean(axis=0))
            for label in present:
                if seen[label] * VOICES >= len(voices[label]) * holders[label]:
                    voices[label].append(means[label].astype(np.float32))
                seen[label] += 1
        if self._known.any():
            middles.append(self._pooled[self._known].mean(axis=0))
        middle = np.median(np.stack(middles), axis=0)
        sets = [class_means(one.sums)[one.sums.present] for one in self._sent]
        sets += [self._pooled[self._known]] if self._known.any() else []
        radii = [float(np.median(np.linalg.norm(means - middle, axis=1))) for means in sets]
        means, count, of_pool = (
            np.zeros_like(self._pooled),
            np.zeros(labels, np.int64),
            np.zeros(labels, bool),
        )
        for label, own in enumerate(voices):
            of_pool[label] = self._known[label] and len(own) == 1
            with_pool = self._known[label] and 0 < len(own) < LEAST
            heard = [*own, self._pooled[label].astype(np.float32)] if with_pool else own
            count[label] = len(heard)
            if of_pool[label]:
                means[label] = self._pooled[label]
            elif len(heard) == 2:
                means[label] = min(heard, key=lambda mean: float(np.linalg.norm(mean - middle)))
            elif heard:
                means[label] = np.median(np.stack(heard), axis=0)
        return Centres(means, count, of_pool, middle, _median(radii))

    def _spread(self) -> tuple[float, float]:
        """The usual distance of a device's means from their centres, and its square times the samples.

        inf if too few can be compared. The second is the scatter that the distances alone would show.
        """
        spreads, noises = [], []
        for one in self._sent:
            compared = (one.sums.counts > 0) & (self._centres.voices >= LEAST)
            if compared.any():
                distances = _lengths(class_means(one.sums) - self._centres.means)
                spreads.append(float(np.median(distances[compared])))
                noises.append(float(np.median((distances**2 * one.sums.counts)[compared])))
        return _median(spreads), _median(noises)

    def _drift(self) -> float:
        """The usual distance of a device's means from the pool's; inf if too few can be compared."""
        drifts = []
        for source, one in zip(self._sent.sources, self._sent, strict=True):
            compared = (one.sums.counts > 0) & self._known
            if compared.any() and not source.late:
                distances = np.linalg.norm(class_means(one.sums) - self._pooled, axis=1)
                drifts.append(float(np.median(distances[compared])))
        return _median(drifts)

    def _reach(self, one: Statistics, source: StatisticsSource) -> NDArray[np.float64]:
        """How far from its centre each class's mean may be, float64 (classes,); inf if that is not known."""
        usual = self._usual
        noise = usual.scatter / np.maximum(1, one.sums.counts)
        moved = (source.late * usual.drift) ** 2 if source.late else 0.0
        of_pool = np.where(self._centres.of_pool, usual.drift**2, 0)
        reach: NDArray[np.float64] = TIMES * np.sqrt(usual.spread**2 + noise + moved + of_pool)
        return reach

    def _counts(self, one: Statistics, source: StatisticsSource) -> bool:
        """Whether the device counts: not if its means are mostly too far where LEAST voices are compared."""
        judged = (one.sums.counts > 0) & (self._centres.voices >= LEAST)
        far = _lengths(class_means(one.sums) - self._centres.means) > self._reach(one, source)
        return not judged.any() or float(far[judged].mean()) < MOSTLY

    def _near(self, one: Statistics, source: StatisticsSource) -> NDArray[np.float64]:
        """The class means within the bounds (classes, width)."""
        centres, has, reach = self._centres, one.sums.counts > 0, self._reach(one, source)
        means = class_means(one.sums)
        compared = has & (centres.voices > 1)
        far = compared & (_lengths(means - centres.means) > reach)
        wide = (
            has
            & ~(compared & np.isfinite(reach))
            & (_lengths(means - centres.middle) > TIMES * centres.radius)
        )
        means = _pulled(means, wide, centres.middle, np.full(len(means), TIMES * centres.radius))
        return _pulled(means, far, centres.means, reach)

    def _all_leads(self) -> tuple[float, float]:
        """The second lowest and the second highest lead of the trained head by held-out samples."""
        rights = [one.right for one in self._sent if one.right[0]]
        leads = sorted((trained - closed) / held for held, closed, trained in rights)
        return (leads[1], leads[-2]) if len(leads) >= LEAST else (-1.0, 1.0)

    def _right(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        """The counts of held-out samples with the lead of the trained head within the others'."""
        held, closed, trained = right.tolist()
        own, (lowest, highest) = (trained - closed) / max(1.0, held), self._leads
        lead = min(max(own, lowest), highest)
        if not held or lead == own:
            return right
        return np.array([held, closed, closed + lead * held])

    def _all_scatter(self) -> tuple[NDArray[np.float64], float]:
        """The sum of scatter over the pool and devices that count, with their samples.

        The trace of each device is at most TIMES the usual one.
        """
        total, samples = _scatter(self._pool), float(self._pool.moment_sums.counts.sum())
        for counted, source, one in zip(self._counted, self._sent.sources, self._sent, strict=True):
            if counted and one.moment_sums.counts.any():
                part, count = self._limited(one, source)
                total, samples = total + part, samples + count
        return total, samples

    def _limited(self, one: Statistics, source: StatisticsSource) -> tuple[NDArray[np.float64], float]:
        """The scatter of a device as it counts in bounds of others, and the number of its samples."""
        part, count = _scatter(one), float(one.moment_sums.counts.sum())
        most, trace = TIMES * self._usual.scatter * count, float(np.trace(part))
        fewer = min(1.0, SIZE * self._usual.size / source.size)
        return part * (fewer * most / trace if trace > most else fewer), fewer * count

    def _possible(self, one: Statistics, part: NDArray[np.float64], own: float) -> NDArray[np.float64] | None:
        """The scatter within the bounds, (width, width); None if it is, or nothing is known of others'.

        part, own: the device's share of the sum over all, and its number of samples in it.
        """
        count, width = float(one.moment_sums.counts.sum()), len(one.moments)
        others = self._scattered - own
        if not count or others < 1:
            return None
        known = (self._scatter - part) / others
        trace = float(np.trace(known))
        if not trace > 0:
            return None
        shrinkage = max(SHRINKAGE, width / (width + others))
        if not _is_positive(known + 1e-9 * trace * np.eye(width)):
            values, vectors = np.linalg.eigh(known)
            known = (vectors * values.clip(0)) @ vectors.T
        known = (1 - shrinkage) * known + shrinkage * trace / width * np.eye(width)
        most = SCATTER * (1 + sqrt(width / count)) ** 2 * max(1.0, ENOUGH * width / others)
        sent = _scatter(one) / count
        fits = _is_positive(most * known - sent)
        if fits and _is_positive(known + sent):  # rounded means of few samples give less than 0
            return None
        squares, axes = np.linalg.eigh(known)
        lengths = np.sqrt(squares.clip(1e-9 * squares[-1]))
        values, vectors = np.linalg.eigh(axes.T @ sent @ axes / np.outer(lengths, lengths))
        half: NDArray[np.float64] = axes * lengths @ vectors
        bounded: NDArray[np.float64] = (half * values.clip(-1, most)) @ half.T
        self._narrowed += float(np.trace(sent)) > FAR * float(np.trace(bounded))
        return bounded * count


def class_means(sums: ClassSums) -> NDArray[np.float64]:
    """The mean of each class, float64 (classes, width); 0 for a class without samples."""
    means: NDArray[np.float64] = sums.sums / np.where(sums.counts > 0, sums.counts, 1)[:, None]
    return means


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


def _scatter(one: Statistics) -> NDArray[np.float64]:
    """The sum of scatter within classes, (width, width), of the samples that have second moments."""
    means = class_means(one.moment_sums)
    scatter: NDArray[np.float64] = one.moments - (means * one.moment_sums.counts[:, None]).T @ means
    return scatter


def _trace(one: Statistics) -> float | None:
    """The trace of the mean scatter within classes; None without second moments."""
    counts = one.moment_sums.counts
    if not counts.any():
        return None
    squares = np.square(class_means(one.moment_sums)).sum(axis=1)
    return max(0.0, float(np.trace(one.moments) - squares @ counts) / float(counts.sum()))


def _with_means(one: Statistics, means: NDArray[np.float64]) -> Statistics:
    """The statistics with these class means, and the same scatter."""
    before, counts = class_means(one.sums), one.sums.counts
    if np.array_equal(means, before):
        return one
    n = one.moment_sums.counts
    shifted = class_means(one.moment_sums) + means - before
    moments = _scatter(one) + (shifted * n[:, None]).T @ shifted
    sums, moment_sums = (ClassSums(m * c[:, None], c) for m, c in ((means, counts), (shifted, n)))
    return replace(one, sums=sums, moment_sums=moment_sums, moments=moments)


def _with_scatter(one: Statistics, scatter: NDArray[np.float64]) -> Statistics:
    """The statistics with this sum of scatter (width, width) of all samples that had second moments."""
    counts, means = one.moment_sums.counts, class_means(one.moment_sums)
    return replace(one, moments=scatter + (means * counts[:, None]).T @ means)


def _is_positive(matrix: NDArray[np.float64]) -> bool:
    """Whether a symmetric matrix is positive definite."""
    try:
        np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return False
    return True


def _median(values: Sequence[float]) -> float:
    """The median over devices; inf for fewer than LEAST."""
    return float(np.median(values)) if len(values) >= LEAST else inf


def _quartile(values: Sequence[float]) -> float:
    """The upper quartile over devices; inf for fewer than LEAST."""
    return float(np.quantile(values, 0.75)) if len(values) >= LEAST else inf
