"""Decides which kinds of update a site merges into one, and makes the update that it forwards.

A site merges kinds that change nothing but the base into one full update. If a round asks for zeroth-order
scalars but not for full updates, it merges its devices' scalars into scalars.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.kind_settings import kinds_named
from device_runtime.broker.wire import step_log
from device_runtime.broker.wire.messages import MessageError, Offer, Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, TensorError
from device_runtime.strategies.interface import capabilities
from device_runtime.strategies.interface.capabilities import MERGES_MORE, MergedAtSite
from device_runtime.strategies.interface.device_half import NO_TENSORS
from device_runtime.strategies.interface.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.statistics import class_statistics, held_out, kind_statistics
from device_runtime.strategies.statistics.class_statistics import MOMENT_ROWS, MOMENTS, ROWS, Statistics
from device_runtime.strategies.statistics.class_sums import ClassSums
from device_runtime.strategies.statistics.closed_form import StatisticsPool
from device_runtime.strategies.statistics.kind_statistics import statistics_of, with_class_statistics
from device_runtime.strategies.training.teaching import trained_specs

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SiteKinds:
    """The kinds that a site offers and forwards for an offer from above.

    forwarded: the kind that the site sends to the aggregator above, a full update or scalars.
    offered: the kinds that the site offers to its devices.
    left_out: for each other kind of the offer, its name and why the site does not offer it.
    length: the ratio of the site's eps to the aggregator's eps; 1 for full updates.
    """

    forwarded: AnyStrategy
    offered: tuple[AnyStrategy, ...]
    left_out: tuple[str, ...] = ()
    length: float = 1.0

    @property
    def means(self) -> AnyStrategy | None:
        """The kind that the site forwards if its devices have sent only class statistics."""
        return next(_statistics_alone(self.offered), None)


class NothingToForward(Exception):
    """The offer asks for no kind that a site forwards. The message is for people."""


def site_kinds(offer: Offer, manifest: Manifest, base: Tensors) -> SiteKinds:
    """The kinds of an offer that a site can merge, in the offer's order of preference.

    `base`: the base of the round or, if there is none yet, the bundle's weights. Raises KindError if this
    version knows none of the kinds, NothingToForward if a site forwards none of them.
    """
    kinds = registry.supported_kinds(offer.kinds)
    full = next((kind for kind in kinds if capabilities.forwarded_as(kind) == "update"), None)
    if full is None:
        return _of_scalars(offer, kinds, base, manifest)
    if statistics_of(full) is None:  # class statistics that cannot be forwarded are not asked for
        kinds = tuple(with_class_statistics(kind, None) for kind in kinds)
    reasons = {kind: why_not(kind, manifest) for kind in kinds}
    return SiteKinds(
        forwarded=full.variants()[0],
        offered=tuple(kind for kind, why in reasons.items() if not why),
        left_out=tuple(f"{kind.name}: {why}" for kind, why in reasons.items() if why),
    )


def _of_scalars(offer: Offer, kinds: Sequence[AnyStrategy], base: Tensors, manifest: Manifest) -> SiteKinds:
    """The kinds of a round without full updates."""
    scalars = next((kind for kind in kinds if capabilities.forwarded_as(kind) == "scalars"), None)
    if not isinstance(scalars, MergedAtSite):
        names = ", ".join(kind.name for kind in kinds)
        raise NothingToForward(
            f"round {offer.round} asks for {names}, and a site forwards full updates or scalars"
        )
    others = [kind for kind in kinds if kind is not scalars]
    means = tuple(_statistics_alone(others))
    why = "without full updates a site forwards scalars only"
    left_out = tuple(f"{kind.name}: {why}" for kind in others if kind not in means)
    offered, length = scalars.at_site(base, manifest)
    return SiteKinds(scalars, (offered, *means), left_out, length)


def _statistics_alone(kinds: Iterable[AnyStrategy]) -> Iterator[AnyStrategy]:
    """The kinds that send only class statistics."""
    return (kind for kind in kinds if kind.traits.statistics_alone and kind.statistics is not None)


def default_site_kinds(manifest: Manifest) -> tuple[AnyStrategy, ...]:
    """The kinds that a site prepares for before it knows a round's kinds."""
    usual = (kind.strategy for kind in kinds_named(registry.DEFAULT_KINDS))
    return tuple(kind for kind in usual if not why_not(kind, manifest))


def why_not(kind: AnyStrategy, manifest: Manifest) -> str:
    """Why updates of a kind cannot be merged into one full update; empty if they can."""
    if not isinstance(kind, MergedAtSite):
        return MERGES_MORE
    if why := kind.site_refusal():
        return why
    full = {spec.name for spec in trained_specs(manifest)}
    try:
        other = [name for form in kind.variants() for name in form.changes(manifest) if name not in full]
    except BundleError as error:
        return str(error)
    return f"it changes {other[0]}, which is not in a full update" if other else ""


# Rounds without full updates: the site's devices measure zeroth-order scalars, and it forwards their mean.


def steps_between(
    before: Offer | None, now: Offer, leads: Callable[[Sequence[Step]], bool]
) -> tuple[Step, ...] | None:
    """The steps from the base of one offer to that of a later one; None if they are not known.

    Two step logs that begin with the same model have the same line name, as after a rollback. The offers are
    on the same log if their most recent common step is equal, because no other log has that step. If they
    have no common step, `leads` decides whether the steps lead from one base to the other.
    """
    if before is None or before.base.line != now.base.line:
        return None
    try:
        earlier, tail = step_log.unpack(before.base.tail), step_log.unpack(now.base.tail)
    except MessageError:
        return None
    count = now.base.at - before.base.at
    if not 0 <= count <= len(tail):
        return None
    between = tail[len(tail) - count :]
    if before.base.at == 0:
        return between
    same = earlier[-1] == tail[-count - 1] if earlier and count < len(tail) else leads(between)
    return between if same else None


def forwarded_scalars(steps: Sequence[Step], length: float) -> Tensors:
    """The mean of the site's scalars, from the one step of its round, in the units of the aggregator above.

    `length`, a power of two, as in SiteKinds.
    """
    [step] = steps
    return {"g": np.asarray(step.scalars, np.float32) * np.float32(length)}


# The class statistics of a site's devices, summed, which it sends with the update that it forwards.


def round_statistics(
    memory: Tensors, base: Tensors, manifest: Manifest, settings: ClassStatistics
) -> Statistics:
    """The class statistics of all devices of a round, of features on the round's base.

    `memory` is the pool that was stored after the round. It holds that round only, as a site gets its rounds
    without what was pooled before.
    """
    projection = class_statistics.projection_of(settings, manifest)
    pooled = StatisticsPool.of(memory, manifest.strata, projection, manifest.columns).statistics
    return pooled if manifest.scale is None else pooled.times(class_statistics.scale_of(manifest, base))


def encoded_statistics(pooled: Statistics, forwarded: AnyStrategy, num_examples: int) -> Tensors:
    """The class statistics as tensors to send; none if no device sent any or `forwarded` has none."""
    wished = kind_statistics.statistics_of(forwarded)
    if wished is None:
        return NO_TENSORS
    pooled = _fewer(pooled, num_examples)
    sums = _whole(pooled, num_examples).at_least(wished.smallest_count)
    if not sums.counts.any():
        return NO_TENSORS
    right = _acceptable(pooled.right, held_out.most(wished.hold_out or 0.0, num_examples))
    try:
        possible = replace(pooled, sums=sums, moments=_possible(pooled), right=right)
        sent = class_statistics.encode(possible, wished)
    except TensorError as error:
        log.warning("class statistics of the site are not sent: %s", error)
        return NO_TENSORS
    if (
        MOMENTS in sent and not forwarded.traits.trains_extractor
    ):  # else the aggregator above would scale the counts again
        sent.setdefault(MOMENT_ROWS, sent[ROWS] if len(sent[MOMENTS]) else sent[ROWS][:0])
    if why := class_statistics.rejection_reason(sent, num_examples, wished.smallest_count, sums.sums.shape):
        log.warning(
            "class statistics of the site are not sent: the aggregator above would refuse them: %s", why
        )
        return NO_TENSORS
    return sent


def _fewer(pooled: Statistics, num_examples: int) -> Statistics:
    """The statistics with second moments scaled down to `num_examples` samples, if they are of more.

    With an entropy subset, a device measures all its samples, but its update counts only the selected ones.
    """
    sums = pooled.moment_sums
    total = float(sums.counts.sum())
    if total <= num_examples:
        return pooled
    counts = np.floor(sums.counts * (num_examples / total))
    return replace(
        pooled, moment_sums=sums.recounted(counts), moments=pooled.moments * (counts.sum() / total)
    )


def _acceptable(right: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Counts of held-out samples, scaled down to at most `most`; see `_fewer`."""
    counts: NDArray[np.float64] = np.floor(right * min(1.0, most / max(1.0, right[0])))
    return counts


def _whole(pooled: Statistics, num_examples: int) -> ClassSums:
    """The sums with counts rounded down to whole numbers, at most `num_examples` in all, and the same means.

    A sample that a device measured may stand for several; a sample with second moments counts once.
    """
    sums, measured = pooled.sums, pooled.moment_sums.counts
    more = sums.counts - measured
    room = max(0.0, num_examples - measured.sum())
    counts = measured + np.floor(more * min(1.0, room / max(1.0, more.sum())))
    if np.array_equal(counts, sums.counts):
        return sums
    return sums.recounted(counts)


def _possible(pooled: Statistics) -> NDArray[np.float64]:
    """The moments, with each square at least what the class means imply.

    Devices round moments and means, which can make a square too small.
    """
    sums = pooled.moment_sums
    moments: NDArray[np.float64] = pooled.moments.copy()
    least: NDArray[np.float64] = (np.square(sums.sums[sums.present]) / sums.counts[sums.present, None]).sum(
        axis=0
    )
    np.fill_diagonal(moments, np.maximum(moments.diagonal(), least))
    return moments
