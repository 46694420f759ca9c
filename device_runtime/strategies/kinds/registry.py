"""All kinds of update and local terms by name, and their settings as an offer carries them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec

from device_runtime.broker.wire.messages import Kind, encode_settings
from device_runtime.content import explained
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.strategies import plugins
from device_runtime.strategies import settings as ranges
from device_runtime.strategies.codecs.codec import CodecError
from device_runtime.strategies.errors import KindError as KindError
from device_runtime.strategies.interface.capabilities import TakesCodec, codec_of
from device_runtime.strategies.interface.kind import AnyStrategy, Settings, Strategy
from device_runtime.strategies.plugins import is_shipped as is_shipped
from device_runtime.strategies.settings import SettingText
from device_runtime.strategies.terms.dp_sgd import DpSgd
from device_runtime.strategies.terms.local_term import LocalTerm
from device_runtime.strategies.terms.moon import Moon
from device_runtime.strategies.terms.proximal import FedProx, FscProx

from .attention_transfer import AttentionTransfer
from .class_means import ClassMeans
from .entropy_subset import EntropySubset
from .evaluation import FederatedEvaluation
from .fedavg import FedAvg
from .few_shot import FewShot
from .full_and_few_shot import FullAndFewShot
from .local_zeroth_order import LocalZerothOrder
from .peft import Peft
from .prototypes import Prototypes
from .representatives import Representatives
from .slora import SparseStage
from .width_slice import WidthSlice
from .zeroth_order import ZerothOrder

log = logging.getLogger(__name__)

SHIPPED: tuple[type[AnyStrategy], ...] = (
    FullAndFewShot,
    Representatives,
    FedAvg,
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
    FederatedEvaluation,
)
KINDS: dict[str, type[AnyStrategy]] = Strategy.registry
KINDS.update({kind.name: kind for kind in SHIPPED})
"""The kinds that are known so far by name, the richest first; `kinds` knows also those of plugins."""
TERMS: dict[str, type[LocalTerm]] = LocalTerm.registry
TERMS.update({term.name: term for term in (FedProx, FscProx, Moon, DpSgd)})
"""The local terms that are known so far by name; `terms` knows also those of plugins."""

STATISTICS, TERMS_SETTING = "statistics", "terms"
"""The setting that the task sets for every kind, and the one whose value is a table of terms by name."""

DEFAULT_KINDS = ("full", "entropy-subset", "few-shot", "class-means", "zeroth-order")
"""The kinds that every bundle can do, in the order of preference."""
OFFERED_KINDS = (*DEFAULT_KINDS[:-1], "width-slice", DEFAULT_KINDS[-1])
"""The kinds that a task offers that names none, see `offered_kinds`."""


def offered_kinds(target: TargetSpec, parts: Iterable[str]) -> tuple[str, ...]:
    """The kinds that a task offers that names none, for a bundle with this loss and these narrower parts.

    Parts are trained where the loss is not of classes. Where it is, devices that cannot train the whole
    network bring more by heads and class statistics.
    """
    return OFFERED_KINDS if target.why_not_by_class and tuple(parts) else DEFAULT_KINDS


P = TypeVar("P", bound=type[Any])
_sources: set[str] = set()
"""The plugins that were looked for: sources, and `_INSTALLED` for installed packages."""
_INSTALLED = "installed"


def register(part: P, source: str = "") -> P:
    """Make a kind, term, merge rule or policy of one's own known by its name; may decorate its class.

    `source`, found by itself if empty, is where other processes load it. Defining a class again, as in a
    notebook, replaces it. Raises KindError for a class that is none of these, or has the name of a shipped
    one.
    """
    name = getattr(part, "name", "")
    if issubclass(part, plugins.Plugin) and "name" not in vars(part):
        raise KindError(f"{part.__qualname__} has no name of its own: give it name: ClassVar[str] = ..")
    if not issubclass(part, plugins.Plugin) or not isinstance(name, str) or not name:
        raise KindError(f"{part.__qualname__} is no kind, term, merge rule or policy with a name")
    if not dataclasses.is_dataclass(part) or getattr(part, "__abstractmethods__", None):
        lacking = ", ".join(sorted(getattr(part, "__abstractmethods__", ()))) or "@dataclass(frozen=True)"
        raise KindError(f"{part.__qualname__} lacks {lacking}")
    if issubclass(part, (Strategy, LocalTerm)):
        try:
            tuple(ranges.list_settings(part))
        except TypeError as error:
            raise KindError(str(error)) from None
    classes = part.registry
    namesake = classes.get(name)
    if namesake is part:
        return part
    if namesake is not None and is_shipped(namesake):
        raise KindError(f"{part.__qualname__} has the name of a shipped one, {name!r}: give it another")
    classes[name] = part
    if source := source or plugins.source_of(part):
        plugins.share(source)
        _sources.add(source)
    return part


def load(source: str) -> type[Any]:
    """Load and register a part: "mykinds.py:TopK" or "package.module:TopK". Raises KindError."""
    source = plugins.absolute(source)
    part = plugins.load_object(source)
    if not isinstance(part, type):
        raise KindError(f"{source} is no class")
    return register(part, source)


def is_portable(strategy: AnyStrategy) -> bool:
    """Whether another process can load the kind and its terms."""
    return all(map(is_loadable, (type(strategy), *map(type, getattr(strategy, TERMS_SETTING, ())))))


def is_loadable(part: type[Any]) -> bool:
    """Whether another process can load a class: it is shipped, or in a file or package."""
    return is_shipped(part) or bool(plugins.source_of(part))


def kinds() -> Mapping[str, type[AnyStrategy]]:
    """All kinds by name, those of plugins included."""
    load_plugins()
    return KINDS


def terms() -> Mapping[str, type[LocalTerm]]:
    """All local terms by name, those of plugins included."""
    load_plugins()
    return TERMS


def load_plugins() -> None:
    """Register the parts of shared sources and installed packages that are new. Raises KindError."""
    for source in plugins.sources():
        if source not in _sources:
            _sources.add(source)  # first, because a file may ask for the kinds while it is loaded
            try:
                load(source)
            except BaseException:
                _sources.discard(source)
                raise
    if _INSTALLED not in _sources:
        _sources.add(_INSTALLED)
        for part in plugins.installed():
            try:
                register(part)
            except (KindError, TypeError) as error:
                log.warning("plugin ignored: %s", error)


def default_settings(names: Sequence[str]) -> tuple[tuple[str, Settings], ...]:
    """Kinds with their default settings in a round that offers these: the paper's if there is only one."""
    return tuple((name, in_mixed_round(name, {}) if len(names) > 1 else {}) for name in names)


def in_mixed_round(name: str, own: Settings) -> Settings:
    """The settings of a kind in a mixed round: the usual ones, overridden by `own`.

    With `reduced_epochs` it is decided how few epochs slow devices train, and the kind is not graded.
    """
    usual = dict(_mixed(name))
    if own.get("reduced_epochs"):
        usual.pop("graded", None)
    return {**usual, **own}


def settings_alone(name: str, settings: Settings) -> dict[str, Any]:
    """The settings of a kind that is offered alone: without those of rounds of several kinds.

    A task that sets `reduced_epochs` keeps all settings, because it has decided how few epochs slow devices
    train.
    """
    joined = {} if settings.get("reduced_epochs") else _mixed(name)
    return {key: value for key, value in settings.items() if key not in joined or joined[key] != value}


def _mixed(name: str) -> Settings:
    strategy = KINDS.get(name) or kinds().get(name)
    return strategy.mixed_round_settings if strategy is not None else {}


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
    """All settings of a kind as an offer carries them, without those of LATER that are at their default."""
    written: dict[str, Any] = _without_later(msgspec.to_builtins(strategy))
    if TERMS_SETTING in written:
        written[TERMS_SETTING] = {term.name: msgspec.to_builtins(term) for term in _terms_of(strategy)}
    return written


def _terms_of(strategy: AnyStrategy) -> tuple[LocalTerm, ...]:
    local_terms: tuple[LocalTerm, ...] = getattr(strategy, TERMS_SETTING, ())
    return local_terms


def list_settings(kind: type[AnyStrategy]) -> Iterable[SettingText]:
    """The settings of a kind as text for people, with those of the terms that it takes."""
    for row in ranges.list_settings(kind, kind.traits.refused):
        yield row
        for name, term in terms().items() if row.name == TERMS_SETTING else ():
            if f"{TERMS_SETTING}.{name}" not in kind.traits.refused:
                yield from ranges.inside(f"{TERMS_SETTING}.{name}", ranges.list_settings(term))


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
    strategy = KINDS.get(name) or kinds().get(name)
    return {"codec": word} if strategy is not None and issubclass(strategy, TakesCodec) else {}


def kind(name: str) -> type[AnyStrategy]:
    """The class of a kind. Raises KindError, which suggests the nearest name."""
    return KINDS.get(name) or _named(name, kinds(), "kind of update")


def term(name: str) -> type[LocalTerm]:
    """The class of a local term. Raises KindError, which suggests the nearest name."""
    return TERMS.get(name) or _named(name, terms(), "local term")


def _named(name: str, classes: Mapping[str, Any], what: str) -> Any:
    if name in classes:
        return classes[name]
    near = get_close_matches(name, classes, 1)
    suggestion = f"; did you mean {near[0]}?" if near else ""
    own = "; --kind FILE.py:CLASS loads one of your own"
    raise KindError(f"no {what} is called {name!r}{suggestion}; there are {', '.join(classes)}{own}")


def _convert(name: str, settings: dict[str, object]) -> AnyStrategy:
    of: Any = kind(name)
    _check_known(name, of, settings)
    tables = settings.pop(TERMS_SETTING, {})
    strategy: AnyStrategy = _with_defaults(_instance(name, of, settings))
    if tables:
        try:
            strategy = dataclasses.replace(strategy, terms=_terms(name, tables))  # type: ignore[call-arg]
        except (TypeError, ValueError) as error:
            raise KindError(f"settings of {name}: {error}") from None
    try:
        codec_of(strategy)
    except CodecError as error:
        raise KindError(f"settings of {name}: {error}") from None
    return strategy


def _instance(name: str, of: Any, settings: Settings) -> Any:
    try:
        return msgspec.convert(settings, of)
    except msgspec.ValidationError as error:
        raise KindError(f"settings of {name}: {explained(error, of)}") from None
    except TypeError as error:
        raise KindError(f"settings of {name}: {error}") from None


def _terms(name: str, tables: object) -> tuple[LocalTerm, ...]:
    """Local terms from a table of their settings by name, in its order."""
    if not isinstance(tables, Mapping):
        raise KindError(f"settings of {name}: terms is {tables!r}, expected a table by name of a term")
    local_terms: list[LocalTerm] = []
    for key, settings in tables.items():
        of, where = term(str(key)), f"{name}'s term {key}"
        if not isinstance(settings, Mapping):
            raise KindError(f"settings of {where} are {settings!r}, expected a table")
        _check_known(where, of, settings)
        local_terms.append(_with_defaults(_instance(where, of, dict(settings))))
    return tuple(local_terms)


def _check_known(name: str, kind: Any, settings: Settings) -> None:
    """Raises KindError for an unknown setting, also within settings that are tables."""
    types = _types(kind)
    if unknown := sorted(settings.keys() - set(types)):
        own = ", ".join(key for key in types if key != STATISTICS)
        raise KindError(f"{name} has no setting {unknown[0]!r}; it has {own}")
    for setting, value in settings.items():
        inner = [
            hint for hint in (types[setting], *get_args(types[setting])) if dataclasses.is_dataclass(hint)
        ]
        if inner and isinstance(value, Mapping):
            _check_known(f"{name}'s {setting}", inner[0], value)


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    """The types of a dataclass's fields, by name."""
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in dataclasses.fields(kind)}


LATER: Settings = {STATISTICS: None, "drawn_epochs": False, "without_lora": "reset", "hold_out": None}
"""Settings that offers carry only where they are not at this default, which older devices do not know."""


def _without_later(written: Any) -> Any:
    if not isinstance(written, dict):
        return written
    pairs = (pair for pair in written.items() if pair[0] not in LATER or pair[1] != LATER[pair[0]])
    return {key: _without_later(value) for key, value in pairs}


def _with_defaults(part: Any) -> Any:
    """A copy in which every field is set, so that an offer carries the defaults too."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    inner = {name: _with_defaults(value) for name, value in fields.items() if dataclasses.is_dataclass(value)}
    return dataclasses.replace(part, **inner)
