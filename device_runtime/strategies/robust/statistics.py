"""Class statistics of a round under a rule: which of a device's count, and for how much.

All rules treat them alike. Each device has one voice, its latest, and counts as no more samples than the
round's median device. A class mean is left out that is too far, first from the coordinate-wise median of the
devices' middles (of each the mean of its class means), then, where three devices or more sent the class, from
the coordinate-wise median of what is left of its means. Too far is more than three times the usual distance:
the median over devices of each one's median over its classes.

Second moments are taken apart into what class means make of them, of which that of means that count is kept,
and the scatter within classes. Negative eigenvalues of that, which no samples have, are taken for 0, and a
device whose trace is more than three times the median is left out of the covariance. With fewer than three
devices there is nothing to compare: their statistics do not count, or where fewer have sent second moments,
these. Held-out samples of a device weigh as if it had as many samples as the median device, at most, and not
where none of its class means counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums
from device_runtime.strategies.training.device_half import NOTHING, Late, TrainedUpdate

from . import by_class
from .settings import FEW
from .sorts import TIMES, named, of
from .spool import Spool, SpooledUpdate, start_in

KIND = "class statistics"
SCATTER = "scatter"
"""Upper triangle of the mean scatter within classes, float32; empty where no second moments came."""


@dataclass(frozen=True)
class Limits:
    """What counts of a device: which classes (classes,), how many samples, and the largest scatter."""

    classes: NDArray[np.bool_]
    samples: float
    scatter: float


class StatisticsOfDevices:
    """Of one round, kept in a file until all have come; `note` is told what was done."""

    def __init__(self, scratch: Path | None, note: Callable[[str], None]) -> None:
        self._scratch, self._note = scratch, note
        self._spool: Spool | None = None

    def close(self) -> None:
        """The file is gone. May be called twice."""
        if self._spool is not None:
            self._spool.close()

    def add(self, sent: Statistics, told: TrainedUpdate) -> None:
        """One more, of the device of contribution `told`. Raises OSError."""
        if not sent.sums.present.size:
            return
        means = np.zeros(sent.sums.sums.shape, np.float32)
        means[sent.sums.present] = sent.sums.means()
        content: dict[str, NDArray[Any]] = {
            by_class.MEANS: means,
            "counts": sent.sums.counts.astype(np.float64),
            SCATTER: _scatter(sent),
            "right": sent.right,
        }
        if self._spool is None:
            start = start_in(NOTHING, "", frozenset({by_class.MEANS}))
            self._spool = Spool(content, start, self._scratch)
        self._spool.add(
            TrainedUpdate(KIND, content, told.num_examples, nan, late=told.late), 1.0, told.device
        )

    def held(self, samples: float) -> Iterator[tuple[Statistics, Late | None]]:
        """Of each device, to be pooled, and how late it came; `samples` are those of the median device.

        Raises OSError.
        """
        if self._spool is None:
            return
        spool = self._spool
        spool.rows = _latest(spool.rows)
        if len(spool) < FEW:
            self._note(f"{of(spool.rows)} too few to tell who lies, and left out")
            return
        counts = by_class.counts_in(spool)
        near = _near(spool, counts > 0)
        if far := [row for row, was, own in zip(spool.rows, counts, near, strict=True) if was[~own].any()]:
            self._note(f"means of {of(far)} left out, far from the others'")
        most = self._most_scatter(spool)
        for row, own in zip(spool.rows, near, strict=True):
            yield _statistics(spool, row, Limits(own, samples, most)), row.told.late

    def _most_scatter(self, spool: Spool) -> float:
        """The largest trace that counts in the covariance; -1: none does."""
        known = {row.device: trace for row in spool.rows if (trace := _trace(spool, row)) is not None}
        if not known:
            return -1.0
        if len(known) < FEW:
            self._note(f"second moments of {len(known)} devices too few to tell who lies, and left out")
            return -1.0
        most = TIMES * float(np.median(list(known.values())))
        if far := [device for device, trace in known.items() if trace > most]:
            self._note(f"second moments of {named(far, KIND)} left out")
        return most


def _latest(rows: list[SpooledUpdate]) -> list[SpooledUpdate]:
    """One of each device: that of the latest round."""
    latest: dict[str, SpooledUpdate] = {}
    for row in rows:
        if row.device not in latest or _round(row) >= _round(latest[row.device]):
            latest[row.device] = row
    return list(latest.values())


def _round(row: SpooledUpdate) -> float:
    return inf if row.told.late is None else row.told.late.round


def _means(spool: Spool, row: SpooledUpdate, labels: int) -> NDArray[np.float64]:
    """(classes, width)."""
    return spool.values(row).reshape(labels, -1).astype(np.float64)


def _near(spool: Spool, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which class means count, of those that are `there` (devices, classes)."""
    means = (_means(spool, row, there.shape[1]) for row in spool.rows)
    middles = [own[has].mean(axis=0) for own, has in zip(means, there, strict=True)]
    near = there & ~_far(spool, there, _median(middles))
    compared = near & (near.sum(axis=0) >= FEW)
    return near & ~_far(spool, compared, _middles(spool, compared))


def _middles(spool: Spool, there: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Of the means of each class the coordinate-wise median, (classes, width); 0 for a class without any."""
    width = spool.starts.size // there.shape[1]
    middles = np.zeros((there.shape[1], width))
    for label in np.flatnonzero(there.any(axis=0)):
        rows = [spool.rows[place] for place in np.flatnonzero(there[:, label])]
        means = [spool.values(row, label * width, (label + 1) * width) for row in rows]
        middles[label] = _median([mean.astype(np.float64) for mean in means])
    return middles


def _median(of_devices: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.median(np.stack(of_devices), axis=0))


def _far(spool: Spool, there: NDArray[np.bool_], about: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which class means are too far from `about`, (classes, width) or (width,)."""
    means = (_means(spool, row, there.shape[1]) for row in spool.rows)
    distances = np.stack([np.linalg.norm(own - about, axis=1) for own in means])
    usual = [np.median(own[has]) for own, has in zip(distances, there, strict=True) if has.any()]
    bound = TIMES * float(np.median(usual)) if usual else inf
    return np.asarray(there & (distances > bound))


def _scatter(sent: Statistics) -> NDArray[np.float32]:
    """Upper triangle of the mean scatter within classes, negative eigenvalues taken for 0; empty for none."""
    sums, width = sent.moment_sums, len(sent.moments)
    if not sums.present.size:
        return np.empty(0, np.float32)
    means = sums.sums[sums.present] / sums.counts[sums.present, None]
    within = (sent.moments - (means * sums.counts[sums.present, None]).T @ means) / sums.counts.sum()
    values, vectors = np.linalg.eigh(within)
    possible: NDArray[np.float64] = (vectors * values.clip(0)) @ vectors.T
    return possible[np.triu_indices(width)].astype(np.float32)


def _trace(spool: Spool, row: SpooledUpdate) -> float | None:
    """Of the scatter that a device has sent; None: it has sent none."""
    rest = spool.rest(row)
    scatter, width = rest[SCATTER], spool.starts.size // len(rest["counts"])
    return float(_whole(scatter, width).trace()) if scatter.size else None


def _statistics(spool: Spool, row: SpooledUpdate, limits: Limits) -> Statistics:
    """What a device counts with."""
    rest, labels = spool.rest(row), len(limits.classes)
    counts = rest["counts"] * limits.classes * min(1.0, limits.samples / rest["counts"].sum())
    means = _means(spool, row, labels) * limits.classes[:, None]
    sums, width = ClassSums(means * counts[:, None], counts), means.shape[1]
    right = rest["right"] * min(1.0, limits.samples / row.told.num_examples) * counts.any()
    scatter = _whole(rest[SCATTER], width) if rest[SCATTER].size else None
    if scatter is None or scatter.trace() > limits.scatter:
        nothing = Statistics.none(labels, width)
        return Statistics(sums, nothing.moment_sums, nothing.moments, right)
    return Statistics(sums, sums, scatter * counts.sum() + means.T @ sums.sums, right)


def _whole(scatter: NDArray[np.float32], width: int) -> NDArray[np.float64]:
    """(width, width)."""
    whole = np.zeros((width, width))
    whole[np.triu_indices(width)] = scatter
    whole += np.triu(whole, 1).T
    return whole
