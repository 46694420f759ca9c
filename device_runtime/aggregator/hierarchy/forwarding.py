"""Which kinds of update a site can merge into one: those of which nothing but the base is left afterwards.

Where scalars are asked for and full updates are not, it merges scalars into scalars.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.aggregator.tasks.task import kinds_named
from device_runtime.broker.wire import step_log
from device_runtime.broker.wire.messages import MessageError, Offer, Step
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError, TensorError
from device_runtime.strategies import registry
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.directions.step_size import unit
from device_runtime.strategies.entropy_subset import EntropySubset
from device_runtime.strategies.few_shot import FewShot
from device_runtime.strategies.full import Full
from device_runtime.strategies.kind import AnyStrategy, ClassStatistics
from device_runtime.strategies.local_zeroth_order import LocalZerothOrder
from device_runtime.strategies.peft import Peft
from device_runtime.strategies.statistics import class_statistics, held_out
from device_runtime.strategies.statistics.class_statistics import (
    MOMENT_ROWS,
    MOMENTS,
    ROWS,
    Statistics,
    asking,
    wished,
)
from device_runtime.strategies.statistics.class_sums import ClassSums
from device_runtime.strategies.statistics.closed_form import StatisticsPool
from device_runtime.strategies.statistics.feature_scale import scale_in
from device_runtime.strategies.training.device_half import NOTHING
from device_runtime.strategies.zeroth_order import ZerothOrder


@dataclass(frozen=True)
class SiteKinds:
    """What a site does with an offer: it forwards `forwarded`, full updates or scalars, and offers `offered`
    to its devices.

    `left_out` says of each other kind why its devices are not asked for it.
    """

    forwarded: Full | ZerothOrder
    offered: tuple[AnyStrategy, ...]
    left_out: tuple[str, ...] = ()
    length: float = 1.0
    """See scalars.forwarded."""

    @property
    def means(self) -> ClassMeans | None:
        """What a site forwards whose devices have sent class statistics alone."""
        return next(_statistics_alone(self.offered), None)


class NothingToForward(Exception):
    """The offer asks for nothing that a site forwards. The message is for people."""


def site_kinds(offer: Offer, manifest: Manifest, base: Tensors) -> SiteKinds:
    """The kinds of an offer that can be merged here, in its order of preference. `base`: of the round, or of
    the bundle where there is none yet.

    Raises KindError when this version knows none of them, NothingToForward.
    """
    kinds = registry.known(offer.kinds)
    full = next((kind for kind in kinds if isinstance(kind, Full)), None)
    if full is None:
        return _of_scalars(offer, kinds, lambda kind: at_site(kind, base, manifest))
    if wished(full) is None:  # what cannot be forwarded is not asked for
        kinds = tuple(asking(kind, None) for kind in kinds)
    reasons = {kind: why_not(kind, manifest) for kind in kinds}
    return SiteKinds(
        forwarded=full.variants()[0],
        offered=tuple(kind for kind, why in reasons.items() if not why),
        left_out=tuple(f"{kind.name}: {why}" for kind, why in reasons.items() if why),
    )


def _of_scalars(
    offer: Offer, kinds: Sequence[AnyStrategy], here: Callable[[ZerothOrder], ZerothOrder]
) -> SiteKinds:
    """For a round without full updates."""
    scalars = next((kind for kind in kinds if isinstance(kind, ZerothOrder)), None)
    if scalars is None:
        names = ", ".join(kind.name for kind in kinds)
        raise NothingToForward(
            f"round {offer.round} asks for {names}, and a site forwards full updates or scalars"
        )
    others = [kind for kind in kinds if kind is not scalars]
    means = tuple(_statistics_alone(others))
    why = "without full updates a site forwards scalars only"
    offered, left_out = here(scalars), tuple(f"{kind.name}: {why}" for kind in others if kind not in means)
    return SiteKinds(scalars, (offered, *means), left_out, offered.eps / scalars.eps)


def _statistics_alone(kinds: Iterable[AnyStrategy]) -> Iterator[ClassMeans]:
    """Those that send class statistics and nothing else."""
    return (kind for kind in kinds if isinstance(kind, ClassMeans) and kind.statistics is not None)


def usual_kinds(manifest: Manifest) -> tuple[AnyStrategy, ...]:
    """What a site gets ready with as long as no round says what it asks for."""
    usual = (kind.strategy for kind in kinds_named(registry.USUAL))
    return tuple(kind for kind in usual if not why_not(kind, manifest))


def why_not(kind: AnyStrategy, manifest: Manifest) -> str:
    """Why updates of a kind cannot be merged into one full update; empty when they can."""
    moved = _MOVED.get(type(kind))
    if moved is None:
        return "what the aggregator makes of it is more than a base"
    if isinstance(kind, FewShot) and (not kind.join_base or kind.send_mean):
        return "its classifiers do not join the base only"
    if isinstance(kind, ZerothOrder) and kind.sizing == "relative":
        return "how far its step goes is known above alone"
    if isinstance(kind, ClassMeans) and kind.statistics is None and kind.head != "trained":
        return f"its classifier is served, not trained into the base (head is {kind.head!r})"
    whole = {spec.name for spec in Full().expected(manifest)}
    try:
        strange = [name for form in kind.variants() for name in moved(form, manifest) if name not in whole]
    except BundleError as error:
        return str(error)
    return f"it moves {strange[0]}, which is not in a full update" if strange else ""


def _expected(kind: AnyStrategy, manifest: Manifest) -> list[str]:
    return [spec.name for spec in kind.expected(manifest)]


def _directions(kind: Any, manifest: Manifest) -> list[str]:
    return list(manifest.names(kind.tunable))


def _head(_kind: AnyStrategy, manifest: Manifest) -> list[str]:
    return [name for name in (manifest.head.weight, manifest.head.bias) if name is not None]


_MOVED: Mapping[type, Callable[[Any, Manifest], list[str]]] = {
    Full: _expected,
    EntropySubset: _expected,
    Peft: _expected,
    FewShot: _expected,
    LocalZerothOrder: _expected,
    ZerothOrder: _directions,
    ClassMeans: _head,
}
"""Kinds that do nothing but move the base, and the tensors of it that a form of them moves."""


# FROM scalars: Rounds of scalars alone at a site: what its devices are told and measure, and what it
# forwards.


def steps_between(
    before: Offer | None, now: Offer, leads: Callable[[Sequence[Step]], bool]
) -> tuple[Step, ...] | None:
    """What leads from the base of one offer to that of a later one; None where the later one does not say.

    Lines have one name where they begin with one model, as when a run goes back to it: whether both offers
    are on the same is told by the last step before, which no other line has, where both name it; else
    `leads` says whether steps lead from the one base to the other.
    """
    if before is None or before.base.line != now.base.line:
        return None
    try:
        earlier, known = step_log.unpack(before.base.tail), step_log.unpack(now.base.tail)
    except MessageError:
        return None
    taken = now.base.at - before.base.at
    if not 0 <= taken <= len(known):
        return None
    between = known[len(known) - taken :]
    if before.base.at == 0:
        return between
    same = earlier[-1] == known[-taken - 1] if earlier and taken < len(known) else leads(between)
    return between if same else None


def at_site(kind: ZerothOrder, base: Tensors, manifest: Manifest) -> ZerothOrder:
    """The kind with which a site's devices measure what they would measure for the one above.

    What is usual of relative scalars is known above alone: here they are absolute, over the same lengths.
    """
    return replace(
        kind, sizing="absolute", eps=kind.eps * unit(base, manifest.specs(kind.tunable), kind.sizing)
    )


def forwarded(steps: Sequence[Step], length: float) -> Tensors:
    """The mean of a site's scalars, from the one step of its round, as the one above counts them: `length` is
    how many times further here is what is one there, a power of two.
    """
    [step] = steps
    return {"g": np.asarray(step.scalars, np.float32) * np.float32(length)}


# FROM statistics: The class statistics of a site's devices, summed, as they go up beside what the site
# forwards.

log = logging.getLogger(__name__)


def of_round(memory: Tensors, base: Tensors, manifest: Manifest, asked: ClassStatistics) -> Statistics:
    """The sums over a round's devices, of features on the round's base.

    `memory` is the pool as it was kept after the round. It holds that round alone: a site is given its rounds
    without what was pooled before.
    """
    projection = asked.projection(manifest.head.features)
    pooled = StatisticsPool.of(memory, len(manifest.labels), projection).statistics
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
