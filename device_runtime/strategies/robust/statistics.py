"""Robust merging of class statistics: which statistics of a device count, and for how many samples.

All rules treat them alike. Of each device only the latest statistics count, for at most as many samples as
the round's median device has. A class mean is rejected if it is too far, first from the coordinate-wise
median of the devices' centres (a centre is the mean of a device's class means), then, if three devices or
more sent the class, from the coordinate-wise median of the class's remaining means. Too far is more than
three times the median distance: the median over devices of each device's median over its classes.

Second moments are split into the part that class means explain, which is kept for means that count, and the
scatter within classes. Negative eigenvalues of the scatter, which no samples can have, are set to 0. A
scatter whose trace is more than three times the median is rejected. Fewer than three devices cannot be
compared: their statistics do not count; if fewer than three sent second moments, these do not count. Held-out
samples of a device weigh as if it had at most as many samples as the median device, and do not count if none
of its class means does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.strategies.interface.device_half import NO_TENSORS, Late, Update
from device_runtime.strategies.statistics.class_statistics import Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums

from . import by_class
from .groups import TIMES, device_list, devices_of
from .rules import LEAST_DEVICES
from .spool import Spool, SpooledUpdate, start_in

KIND = "class statistics"
SCATTER = "scatter"
"""Upper triangle of the mean scatter within classes, float32; empty where no second moments came."""


@dataclass(frozen=True)
class Limits:
    """The limits for a device: classes that count (classes,), the most samples, the largest scatter trace."""

    classes: NDArray[np.bool_]
    samples: float
    scatter: float


class StatisticsOfDevices:
    """The class statistics of a round's devices, kept in a file until all have come.

    `note` is called with a text about anything rejected.
    """

    def __init__(self, scratch: Path | None, note: Callable[[str], None]) -> None:
        self._scratch, self._note = scratch, note
        self._spool: Spool | None = None

    def close(self) -> None:
        """Delete the file. May be called twice."""
        if self._spool is not None:
            self._spool.close()

    def add(self, sent: Statistics, update: Update) -> None:
        """Add the statistics `sent` with an update. Raises OSError."""
        if not sent.sums.present.size:
            return
        means = np.zeros(sent.sums.sums.shape, np.float32)
        means[sent.sums.present] = sent.sums.means()
        content: dict[str, NDArray[Any]] = {
            by_class.MEANS: means,
            "counts": sent.sums.counts.astype(np.float64),
            SCATTER: _scatter(sent),
            "right": sent.right,
            "stands_for": np.array([sent.stands_for]),
        }
        if self._spool is None:
            start = start_in(NO_TENSORS, "", frozenset({by_class.MEANS}))
            self._spool = Spool(content, start, self._scratch)
        self._spool.add(
            Update(KIND, content, update.num_examples, nan, late=update.late),
            1.0,
            update.device,
        )

    def held(self, samples: float) -> Iterator[tuple[Statistics, Late | None]]:
        """The statistics of each device that are to be pooled, and whether they are late.

        `samples` is the number of samples of the round's median device. Raises OSError.
        """
        if self._spool is None:
            return
        spool = self._spool
        spool.rows = _latest(spool.rows)
        if len(spool) < LEAST_DEVICES:
            self._note(f"{devices_of(spool.rows)} too few to detect false ones, rejected")
            return
        counts = by_class.counts_in(spool)
        near = _near(spool, counts > 0)
        if far := [row for row, was, own in zip(spool.rows, counts, near, strict=True) if was[~own].any()]:
            self._note(f"means of {devices_of(far)} rejected, far from the others'")
        most = self._most_scatter(spool)
        for row, own in zip(spool.rows, near, strict=True):
            yield _statistics(spool, row, Limits(own, samples, most)), row.metadata.late

    def _most_scatter(self, spool: Spool) -> float:
        """The largest scatter trace that counts in the covariance; -1: none counts."""
        traces = {row.device: trace for row in spool.rows if (trace := _trace(spool, row)) is not None}
        if not traces:
            return -1.0
        if len(traces) < LEAST_DEVICES:
            self._note(f"second moments of {len(traces)} devices too few to detect false ones, rejected")
            return -1.0
        most = TIMES * float(np.median(list(traces.values())))
        if far := [device for device, trace in traces.items() if trace > most]:
            self._note(f"second moments of {device_list(far, KIND)} rejected")
        return most


def _latest(rows: list[SpooledUpdate]) -> list[SpooledUpdate]:
    """One row of each device: that of the latest round."""
    latest: dict[str, SpooledUpdate] = {}
    for row in rows:
        if row.device not in latest or _round(row) >= _round(latest[row.device]):
            latest[row.device] = row
    return list(latest.values())


def _round(row: SpooledUpdate) -> float:
    return inf if row.metadata.late is None else row.metadata.late.round


def _means(spool: Spool, row: SpooledUpdate, labels: int) -> NDArray[np.float64]:
    """The class means of a device, float64 (classes, width)."""
    return spool.values(row).reshape(labels, -1).astype(np.float64)


def _near(spool: Spool, present: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which of the class means that are `present` count, (devices, classes)."""
    means = (_means(spool, row, present.shape[1]) for row in spool.rows)
    middles = [own[has].mean(axis=0) for own, has in zip(means, present, strict=True)]
    near = present & ~_far(spool, present, _median(middles))
    compared = near & (near.sum(axis=0) >= LEAST_DEVICES)
    return near & ~_far(spool, compared, _middles(spool, compared))


def _middles(spool: Spool, present: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The coordinate-wise median of each class's means, (classes, width); 0 for a class without means."""
    width = spool.starts.size // present.shape[1]
    middles = np.zeros((present.shape[1], width))
    for label in np.flatnonzero(present.any(axis=0)):
        rows = [spool.rows[place] for place in np.flatnonzero(present[:, label])]
        means = [spool.values(row, label * width, (label + 1) * width) for row in rows]
        middles[label] = _median([mean.astype(np.float64) for mean in means])
    return middles


def _median(of_devices: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.asarray(np.median(np.stack(of_devices), axis=0))


def _far(spool: Spool, present: NDArray[np.bool_], about: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which class means are too far from `about` (classes, width) or (width,): bool (devices, classes)."""
    means = (_means(spool, row, present.shape[1]) for row in spool.rows)
    distances = np.stack([np.linalg.norm(own - about, axis=1) for own in means])
    usual = [np.median(own[has]) for own, has in zip(distances, present, strict=True) if has.any()]
    bound = TIMES * float(np.median(usual)) if usual else inf
    return np.asarray(present & (distances > bound))


def _scatter(sent: Statistics) -> NDArray[np.float32]:
    """Upper triangle of the mean scatter within classes, negative eigenvalues set to 0; empty for none."""
    sums, width = sent.moment_sums, len(sent.moments)
    if not sums.present.size:
        return np.empty(0, np.float32)
    means = sums.sums[sums.present] / sums.counts[sums.present, None]
    within = (sent.moments - (means * sums.counts[sums.present, None]).T @ means) / sums.counts.sum()
    values, vectors = np.linalg.eigh(within)
    possible: NDArray[np.float64] = (vectors * values.clip(0)) @ vectors.T
    return possible[np.triu_indices(width)].astype(np.float32)


def _trace(spool: Spool, row: SpooledUpdate) -> float | None:
    """The trace of a device's scatter; None if it sent no second moments."""
    rest = spool.rest(row)
    scatter, width = rest[SCATTER], spool.starts.size // len(rest["counts"])
    return float(_whole(scatter, width).trace()) if scatter.size else None


def _statistics(spool: Spool, row: SpooledUpdate, limits: Limits) -> Statistics:
    """The statistics of a device that count, within its limits."""
    rest, labels = spool.rest(row), len(limits.classes)
    share = min(1.0, limits.samples / rest["counts"].sum())
    counts, stands_for = rest["counts"] * limits.classes * share, share * float(rest["stands_for"][0])
    means = _means(spool, row, labels) * limits.classes[:, None]
    sums, width = ClassSums(means * counts[:, None], counts), means.shape[1]
    right = rest["right"] * min(1.0, limits.samples / row.metadata.num_examples) * counts.any()
    scatter = _whole(rest[SCATTER], width) if rest[SCATTER].size else None
    if scatter is None or scatter.trace() > limits.scatter:
        nothing = Statistics.none(labels, width)
        return Statistics(sums, nothing.moment_sums, nothing.moments, right, stands_for)
    return Statistics(sums, sums, scatter * counts.sum() + means.T @ sums.sums, right, stands_for)


def _whole(scatter: NDArray[np.float32], width: int) -> NDArray[np.float64]:
    """The symmetric matrix (width, width) of an upper triangle."""
    whole = np.zeros((width, width))
    whole[np.triu_indices(width)] = scatter
    whole += np.triu(whole, 1).T
    return whole
