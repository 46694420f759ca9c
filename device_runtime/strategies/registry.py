"""All kinds of update by name, and how their settings are read from and written to an offer."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, get_args, get_type_hints

import msgspec

from device_runtime.broker.wire.messages import Kind, encode_settings

from .attention_transfer import AttentionTransfer
from .class_means import ClassMeans
from .codecs import chain as codecs
from .codecs.codec import CodecError
from .entropy_subset import EntropySubset
from .errors import KindError as KindError
from .few_shot import FewShot
from .full import Full
from .full_and_few_shot import FullAndFewShot
from .kind import AnyStrategy, Settings, TakesCodec
from .local_zeroth_order import LocalZerothOrder
from .peft import Peft
from .prototypes import Prototypes
from .representatives import Representatives
from .slora import SparseStage
from .width_slice import WidthSlice
from .zeroth_order import ZerothOrder

log = logging.getLogger(__name__)

KINDS: dict[str, type[AnyStrategy]] = {
    kind.name: kind
    for kind in (
        FullAndFewShot,
        Representatives,
        Full,
        WidthSlice,
        SparseStage,
        Peft,
        EntropySubset,
        AttentionTransfer,
        Prototypes,
        FewShot,
        ClassMeans,
        LocalZerothOrder,
        ZerothOrder,
    )
}
"""All kinds by name, the richest first."""

STATISTICS = "statistics"
"""The setting that the task sets for every kind, see `kind.StrategyDefaults`."""

DEFAULT_KINDS = ("full", "entropy-subset", "few-shot", "class-means", "zeroth-order")
"""The kinds that a task offers by default, in the order of preference."""

MIXED_ROUND_SETTINGS: Mapping[str, Settings] = {
    "full": {"graded": True},
    "entropy-subset": {"least_samples": 10},
    "few-shot": {"join_base": True, "least_samples": 40},
    "class-means": {"head": "trained"},
}
"""Default settings by kind in rounds that offer several kinds, in place of the papers' own."""


def default_settings(names: Sequence[str]) -> tuple[tuple[str, Settings], ...]:
    """Kinds with their default settings in a round that offers these: the paper's if there is only one."""
    return tuple((name, MIXED_ROUND_SETTINGS.get(name, {}) if len(names) > 1 else {}) for name in names)


def settings_alone(name: str, settings: Settings) -> dict[str, Any]:
    """The settings of a kind that is offered alone: without those of MIXED_ROUND_SETTINGS.

    A task that sets `reduced_epochs` keeps all settings, because it has decided how few epochs slow devices
    train.
    """
    joined = {} if settings.get("reduced_epochs") else MIXED_ROUND_SETTINGS.get(name, {})
    return {key: value for key, value in settings.items() if key not in joined or joined[key] != value}


def make(name: str, settings: Settings | None = None) -> AnyStrategy:
    """The kind of this name, with these settings in place of its defaults. Raises KindError."""
    return _convert(name, dict(settings or {}))


def read(kind: Kind) -> AnyStrategy:
    """The kind that an offer describes. Raises KindError."""
    try:
        settings = msgspec.msgpack.decode(kind.settings, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KindError(f"settings of {kind.name}: {error}") from None
    return _convert(kind.name, settings)


def write(strategy: AnyStrategy) -> Kind:
    """The kind as an offer carries it: its name and all of its settings."""
    return Kind(strategy.name, encode_settings(settings(strategy)))


def settings(strategy: AnyStrategy) -> dict[str, Any]:
    """All settings of a kind as an offer carries them, without `statistics` if it is None."""
    written: dict[str, Any] = _without_none(msgspec.to_builtins(strategy))
    return written


def supported_kinds(kinds: Iterable[Kind]) -> tuple[AnyStrategy, ...]:
    """The kinds of an offer that this version supports; a newer aggregator may offer others.

    Raises KindError if there is none.
    """
    usable: list[AnyStrategy] = []
    reasons: list[str] = []
    for kind in kinds:
        try:
            usable.append(read(kind))
        except KindError as error:
            reasons.append(str(error))
    if not usable:
        raise KindError("; ".join(reasons) or "no kind of update is offered")
    for reason in reasons:
        log.warning("kind not supported, ignored: %s", reason)
    return tuple(usable)


def codec_setting(name: str, word: str) -> Settings:
    """The setting that makes a kind use this codec; empty for a kind without a codec."""
    known = KINDS.get(name)
    return {"codec": word} if known is not None and issubclass(known, TakesCodec) else {}


def kind(name: str) -> type[AnyStrategy]:
    """The class of a kind. Raises KindError, which suggests the nearest name."""
    if name in KINDS:
        return KINDS[name]
    near = get_close_matches(name, KINDS, 1)
    meant = f"; did you mean {near[0]}?" if near else ""
    raise KindError(f"no kind of update is called {name!r}{meant}; there are {', '.join(KINDS)}")


def _convert(name: str, settings: dict[str, object]) -> AnyStrategy:
    of: Any = kind(name)
    _check_known(name, of, settings)
    try:
        made: Any = msgspec.convert(settings, of)
    except (msgspec.ValidationError, TypeError) as error:
        raise KindError(f"settings of {name}: {error}") from None
    strategy: AnyStrategy = _with_defaults(made)
    try:
        codecs.codec_named(strategy.codec)
    except CodecError as error:
        raise KindError(f"settings of {name}: {error}") from None
    return strategy


def _check_known(name: str, kind: Any, settings: Settings) -> None:
    """Raises KindError for an unknown setting, also within settings that are tables."""
    types = get_type_hints(kind)
    known = {field.name: types[field.name] for field in dataclasses.fields(kind)}
    if unknown := sorted(settings.keys() - set(known)):
        own = ", ".join(one for one in known if one != STATISTICS)
        raise KindError(f"{name} has no setting {unknown[0]!r}; it has {own}")
    for setting, value in settings.items():
        inner = [one for one in (known[setting], *get_args(known[setting])) if dataclasses.is_dataclass(one)]
        if inner and isinstance(value, Mapping):
            _check_known(f"{name}'s {setting}", inner[0], value)


def _without_none(written: Any) -> Any:
    if not isinstance(written, dict):
        return written
    return {key: _without_none(value) for key, value in written.items() if (key, value) != (STATISTICS, None)}


def _with_defaults(made: Any) -> Any:
    """A copy in which every field is set, so that an offer carries the defaults too."""
    fields = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    inner = {name: _with_defaults(value) for name, value in fields.items() if dataclasses.is_dataclass(value)}
    return dataclasses.replace(made, **inner)
