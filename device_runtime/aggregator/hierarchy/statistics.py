"""The class statistics of a site's devices, summed, as they go up beside what the site forwards."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import TensorError
from device_runtime.strategies.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.statistics import class_statistics, held_out
from device_runtime.strategies.statistics.class_statistics import MOMENT_ROWS, MOMENTS, ROWS, Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums
from device_runtime.strategies.statistics.closed_form import Pool
from device_runtime.strategies.statistics.feature_scale import scale_in
from device_runtime.strategies.training.device_half import NOTHING

log = logging.getLogger(__name__)


def of_round(memory: Tensors, base: Tensors, manifest: Manifest, asked: ClassStatistics) -> Statistics:
    """The sums over a round's devices, of features on the round's base.

    `memory` is the pool as it was kept after the round. It holds that round alone: a site is given its rounds
    without what was pooled before.
    """
    projection = asked.projection(manifest.head.features)
    pooled = Pool.of(memory, len(manifest.labels), projection).statistics
    return pooled if manifest.scale is None else pooled.times(scale_in(manifest, base))


def encoded(pooled: Statistics, forwarded: AnyStrategy, num_examples: int) -> Tensors:
    """Tensors for the wire; none where nobody sent any, or the kind that is forwarded comes without."""
    wished = class_statistics.wished(forwarded)
    if wished is None:
        return NOTHING
    pooled = _fewer(pooled, num_examples)
    sums = _whole(pooled, num_examples).at_least(wished.smallest_count)
    if not sums.counts.any():
        return NOTHING
    right = _believed(pooled.right, held_out.most(wished.hold_out, num_examples))
    try:
        possible = replace(pooled, sums=sums, moments=_possible(pooled), right=right)
        sent = class_statistics.encode(possible, wished)
    except TensorError as error:
        log.warning("class statistics of the site are not sent: %s", error)
        return NOTHING
    if MOMENTS in sent and not forwarded.trains_extractor:  # else the one above would scale the counts again
        sent.setdefault(MOMENT_ROWS, sent[ROWS] if len(sent[MOMENTS]) else sent[ROWS][:0])
    if why := class_statistics.doubt(sent, num_examples, wished.smallest_count, sums.sums.shape):
        log.warning("class statistics of the site are not sent: the one above would refuse them: %s", why)
        return NOTHING
    return sent


def _fewer(pooled: Statistics, num_examples: int) -> Statistics:
    """Second moments scaled down to `num_examples` samples where they are of more.

    An entropy subset measures all samples of its device, and its update counts those that it selects.
    """
    known = pooled.moment_sums
    total = float(known.counts.sum())
    if total <= num_examples:
        return pooled
    counts = np.floor(known.counts * (num_examples / total))
    return replace(
        pooled, moment_sums=known.recounted(counts), moments=pooled.moments * (counts.sum() / total)
    )


def _believed(right: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Counts of held-out samples scaled down to at most so many; see `_fewer`."""
    counts: NDArray[np.float64] = np.floor(right * min(1.0, most / max(1.0, right[0])))
    return counts


def _whole(pooled: Statistics, num_examples: int) -> ClassSums:
    """Counts rounded down to whole numbers, at most `num_examples` in all, with the same means.

    A sample that a device measured may stand for several; one whose second moments were sent counts once.
    """
    sums, measured = pooled.sums, pooled.moment_sums.counts
    more = sums.counts - measured
    room = max(0.0, num_examples - measured.sum())
    counts = measured + np.floor(more * min(1.0, room / max(1.0, more.sum())))
    if np.array_equal(counts, sums.counts):
        return sums
    return sums.recounted(counts)


def _possible(pooled: Statistics) -> NDArray[np.float64]:
    """The moments, with no square smaller than the class means make it: each device has rounded both."""
    sums = pooled.moment_sums
    moments: NDArray[np.float64] = pooled.moments.copy()
    least: NDArray[np.float64] = (np.square(sums.sums[sums.present]) / sums.counts[sums.present, None]).sum(
        axis=0
    )
    np.fill_diagonal(moments, np.maximum(moments.diagonal(), least))
    return moments
