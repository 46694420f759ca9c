"""Names that `Strategy` had in the release before, each with a DeprecationWarning, for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from device_runtime.models.bundles.manifest import Manifest
from device_runtime.profiles import Workload

from .capabilities import (
    FOLDS_OTHERWISE,
    MERGES_MORE,
    Comparable,
    EndsEarly,
    MergedAtSite,
    SelectsSamples,
    SendsScalars,
    Summable,
    Traits,
    listed_variant,
)

TRAITS = frozenset(field.name for field in fields(Traits))


class FormerMethods:
    """Methods that are functions now (`interface.kind`), for own kinds that override them."""

    def inapplicable_reason(self: Any, manifest: Manifest) -> str:
        return manifest.target.why_not_by_class if self.traits.by_class else ""

    def unfit_reason(self: Any, workload: Workload) -> str:
        unfit: str = workload.no_classes if self.traits.by_class else ""
        return unfit or str(self.infeasible_reason(workload))

    def variant_named(self: Any, name: str) -> Any:
        ended = self.ended_variant(name) if isinstance(self, EndsEarly) else None
        return listed_variant(self, name) if ended is None else ended


CAPABILITIES = (
    Comparable,
    Summable,
    MergedAtSite,
    SendsScalars,
    EndsEarly,
    SelectsSamples,
    FormerMethods,
)
WITHOUT: Mapping[str, Any] = {
    "compared_as": None,
    "adds_up": False,
    "summed": (),
    "unsummable_reason": lambda kind: FOLDS_OTHERWISE,
    "forwarded_as": "",
    "site_refusal": lambda kind: MERGES_MORE,
    "scalars": 0,
    "selected_share": 1.0,
    "codec": "",
}
"""What those names gave for a kind without the capability."""
NOT_INHERITED = frozenset({"compared_as", "adds_up", "site_refusal"})
"""Of these a capability says otherwise, so that a translated class gets what it had."""


class FormerName:
    """Answers for a kind by a name of the release before, unless a class of it still has that name."""

    def __init__(self, name: str, value: object) -> None:
        self._name, self._value = name, value

    def __get__(self, kind: object, owner: type) -> Any:
        for each in owner.__mro__:
            if self._name in vars(each) and vars(each)[self._name] is not self:
                return _bound(vars(each)[self._name], kind, owner)
        _warn(f"{owner.__qualname__}.{self._name} will be gone")
        return _bound(self._value, kind, owner)


def _bound(value: Any, kind: object, owner: type) -> Any:
    return value.__get__(kind, owner) if hasattr(value, "__get__") else value


class FormerNames:
    """Translates what own kinds say, and answers what they ask, by the names of the release before."""

    def __init_subclass__(cls, **traits: Any) -> None:
        body = dict(vars(cls))
        former = {name: body[name] for name in TRAITS & body.keys()}
        for name in sorted(former):
            keyword = f"class {cls.__name__}(.., {name}={former[name]!r})"
            _warn(f"{cls.__qualname__}.{name}: write {keyword}")
        super().__init_subclass__(**{**former, **traits})
        for capability in CAPABILITIES:
            names = [name for name in vars(capability) if name in body and not name.startswith("_")]
            if names and not issubclass(cls, capability):
                derive = f"derive {cls.__name__} from {capability.__name__}"
                does = "it will not be asked" if capability is FormerMethods else derive
                _warn(f"{cls.__qualname__}.{names[0]}: {does}")
                cls.__bases__ = (capability, *cls.__bases__)
                for name in NOT_INHERITED & vars(capability).keys() - body.keys():
                    setattr(cls, name, WITHOUT[name])


def _warn(text: str) -> None:
    """Warns where the code that asked stands, past the classes of this folder and `abc`."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals["__name__"].startswith((f"{__package__}.", "abc")):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{text}, from the next release on", DeprecationWarning, stacklevel=level)


def _trait(name: str) -> property:
    def get(kind: Any) -> Any:
        return getattr(kind.traits, name)

    return property(get)


def _add_names() -> None:
    for name in TRAITS:
        setattr(FormerNames, name, FormerName(name, _trait(name)))
    moved = {name: value for each in CAPABILITIES for name, value in vars(each).items()}
    for name, value in {**moved, **WITHOUT}.items():
        if not name.startswith("_"):
            setattr(FormerNames, name, FormerName(name, value))


_add_names()
