"""Every kind of update by its name; settings in and out of the offer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from broker.messages import Kind, pack

from .class_means import ClassMeans
from .entropy_subset import EntropySubset
from .few_shot import FewShot
from .full import Full
from .kind import AnyStrategy, Settings
from .zeroth_order import ZerothOrder

KINDS: dict[str, type[AnyStrategy]] = {
    kind.name: kind for kind in (Full, EntropySubset, FewShot, ZerothOrder, ClassMeans)
}
"""In the default order of preference: the richest first."""


class KindError(ValueError):
    """A kind of update that this version does not have, or settings that it does not take."""


def make(name: str, settings: Settings | None = None) -> AnyStrategy:
    """A strategy by its name, with these hyperparameters over its defaults. Raises KindError."""
    return _convert(name, dict(settings or {}))


def read(kind: Kind) -> AnyStrategy:
    """The strategy of an offer. Raises KindError."""
    return _convert(kind.name, msgspec.msgpack.decode(kind.settings))


def write(strategy: AnyStrategy) -> Kind:
    """The strategy as it stands in an offer: its name, and all of its fields."""
    return Kind(strategy.name, pack(strategy))


def known(kinds: Iterable[Kind]) -> tuple[AnyStrategy, ...]:
    """Those kinds of an offer that this version has; a newer aggregator may offer others."""
    return tuple(read(kind) for kind in kinds if kind.name in KINDS)


def _convert(name: str, settings: object) -> AnyStrategy:
    if name not in KINDS:
        raise KindError(f"no kind of update is called {name!r}; there are {', '.join(KINDS)}")
    try:
        return msgspec.convert(settings, KINDS[name])
    except (msgspec.ValidationError, TypeError) as error:
        raise KindError(f"settings of {name}: {error}") from None
