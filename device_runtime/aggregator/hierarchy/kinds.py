"""Which kinds of update a site can merge into one: those of which nothing but the base is left afterwards.

Where scalars are asked for and full updates are not, it merges scalars into scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from device_runtime.aggregator.tasks.task import kinds_named
from device_runtime.broker.wire.messages import Offer
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import BundleError
from device_runtime.strategies import registry
from device_runtime.strategies.class_means import ClassMeans
from device_runtime.strategies.entropy_subset import EntropySubset
from device_runtime.strategies.few_shot import FewShot
from device_runtime.strategies.full import Full
from device_runtime.strategies.kind import AnyStrategy
from device_runtime.strategies.local_zeroth_order import LocalZerothOrder
from device_runtime.strategies.peft import Peft
from device_runtime.strategies.statistics.class_statistics import asking, wished
from device_runtime.strategies.zeroth_order import ZerothOrder

from .scalars import at_site


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
