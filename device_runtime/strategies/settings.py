"""Declares settings: each has its meaning, unit and allowed values in the annotation of its field.

The checks, the options of `serve` and `simulate`, `device-runtime kinds`, docs/task.md and the description of
REST all read that annotation:

    shots: Annotated[int, Setting("Samples of each class.", example=5, unit="samples", at_least=1)] = 10
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from device_runtime.models.bundles.names import TUNABLE_SETS

MOST = 1_000_000
"""The largest whole number that settings take, such as epochs, batch size and shots: more is a mistake."""
MOST_DIRECTIONS = 1024
"""The most directions of a zeroth-order round, whose scalars go into the step log, 512 steps to a blob."""
REQUIRED = "required"
_NUMBERS = (int, float)


@dataclass(frozen=True)
class Setting:
    """What a setting means in one sentence, an example value, its unit and its limits.

    beside: other settings that the example needs.
    choices: the allowed values of a text whose type does not list them.
    by_task: the task sets it for all kinds, so it is not a key in a kind's own table.
    none: what happens without the setting, where its default is None.
    flag: its option on a command line; empty: the field's name without `_s`, and no option within a table.
    metavar: the option's value in help texts; empty: by type and unit.
    or_text: a pattern of texts that the option of a number takes too, for the command to find the number;
    text_example is one.
    longest: the most characters of a text, which is then one line; 0 for any text.
    """

    meaning: str
    example: object
    unit: str = "-"
    at_least: float = -inf
    more_than: float = -inf
    at_most: float = inf
    less_than: float = inf
    choices: tuple[str, ...] = ()
    beside: Mapping[str, object] = field(default_factory=dict)
    by_task: bool = False
    none: str = ""
    flag: str = ""
    metavar: str = ""
    or_text: str = ""
    text_example: str = ""
    longest: int = 0

    def has_text(self, value: object) -> bool:
        """Whether a value is a text that stands for a number, as `or_text` says."""
        return bool(self.or_text) and isinstance(value, str) and bool(re.fullmatch(self.or_text, value))

    @property
    def limited(self) -> bool:
        """Whether there are limits to check."""
        limits = (self.at_least, self.more_than, self.at_most, self.less_than)
        return bool(self.choices or self.longest) or any(isfinite(limit) for limit in limits)

    @property
    def range(self) -> str:
        """The allowed values in words; "-" if any value of the type is allowed."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.longest:
            return f"a line of at most {self.longest} characters"
        strict = isfinite(self.more_than)
        if isfinite(self.less_than):
            low = f"more than {self.more_than}" if strict else f"at least {self.at_least}"
            return f"{low} and less than {self.less_than}"
        low = f"more than {self.more_than}" if strict else f"{self.at_least}"
        if isfinite(self.at_most):
            return f"{low} to {self.at_most}"
        if strict:
            return low
        return f"{low} or more" if isfinite(self.at_least) else "-"

    def allows(self, value: Any) -> bool:
        """Whether a value is within the limits; where there are any, a number must be finite."""
        if self.choices:
            return value in self.choices
        if self.longest:
            return len(value) <= self.longest and value.isprintable()
        return bool(self.at_least <= value <= self.at_most and self.more_than < value < self.less_than)


LocalEpochs = Annotated[
    int,
    Setting("Passes over the local samples in a round.", example=5, unit="epochs", at_least=1, at_most=MOST),
]
LearningRate = Annotated[float, Setting("Learning rate of local training.", example=0.05, more_than=0)]
Momentum = Annotated[
    float, Setting("Momentum of local training (SGD).", example=0.9, at_least=0, less_than=1)
]
WeightDecay = Annotated[float, Setting("Weight decay of local training.", example=1e-4, at_least=0)]
BatchSize = Annotated[
    int, Setting("Batch size of local training.", example=32, unit="samples", at_least=1, at_most=MOST)
]
ClipNorm = Annotated[
    float,
    Setting(
        "Largest norm of a step's gradient; 0: no limit.", example=1.0, unit="Euclidean norm", at_least=0
    ),
]
ClipNormByBundle = Annotated[
    float | None,
    Setting(
        "Largest norm of a step's gradient; 0: no limit; none: 2, or 0.5 for all of a pre-trained network.",
        example=1.0,
        unit="Euclidean norm",
        at_least=0,
    ),
]
ServerEpochs = Annotated[
    int, Setting("Epochs of training on the aggregator.", example=5, unit="epochs", at_least=1, at_most=MOST)
]
ServerLearningRate = Annotated[
    float, Setting("Learning rate of training on the aggregator.", example=0.05, more_than=0)
]
ServerBatchSize = Annotated[
    int,
    Setting(
        "Batch size of training on the aggregator.", example=32, unit="samples", at_least=1, at_most=MOST
    ),
]
Members = Annotated[
    tuple[str, ...],
    Setting(
        "Members of the task's `family` that devices may train, by name or file, largest first; none: all.",
        example=("smaller.zip",),
    ),
]
Level = Annotated[
    Literal["low", "mid", "up"], Setting("Depth of the network whose feature maps are sent.", example="mid")
]
Directions = Annotated[
    int,
    Setting(
        "Random directions that the loss is measured along in a step.",
        example=4,
        unit="directions",
        at_least=1,
        at_most=MOST_DIRECTIONS,
    ),
]
SmallestCount = Annotated[
    int,
    Setting(
        "Fewest samples that a class must have on a device for its sum or mean to be sent.",
        example=5,
        unit="samples",
        at_least=1,
        at_most=MOST,
    ),
]
Distance = Annotated[
    float, Setting("How far along a direction the loss is measured.", example=1e-2, more_than=0)
]
TunableSet = Annotated[
    str, Setting("Tunable set: the parameters that change.", example="head", choices=TUNABLE_SETS)
]


def check(settings: Any, of: str = "") -> None:
    """Raises ValueError for a value outside its limits; it names the setting, the value and the limits.

    `of` follows the setting's name in the message. None and nested settings are not checked.
    """
    for name, setting, least, above, most, below in _limited(settings.__class__):
        value = getattr(settings, name)
        if value.__class__ in _NUMBERS and least <= value <= most and above < value < below:
            continue  # the fast path: a simulation makes a form of a kind for every device
        for each in value if isinstance(value, tuple) else (value,):
            if each is not None and not setting.allows(each):
                text = repr(each) if isinstance(each, str) else each
                raise ValueError(f"{name}{of} is {text}, expected {setting.range}")


@dataclass(frozen=True)
class SettingField:
    """A field with a `Setting`: its type, without None, and its default; REQUIRED for none."""

    name: str
    type: Any
    default: Any
    setting: Setting

    @property
    def choices(self) -> tuple[Any, ...]:
        """The allowed values, if they are listed."""
        return get_args(self.type) if get_origin(self.type) is Literal else self.setting.choices

    @property
    def option(self) -> str:
        """Its option on a command line, without dashes in front."""
        return self.setting.flag or self.name.removesuffix("_s").replace("_", "-")

    @property
    def item(self) -> Any:
        """The type of the items of a list; None for any other field."""
        return get_args(self.type)[0] if get_origin(self.type) is tuple else None

    @property
    def table(self) -> type | None:
        """The class of a table with settings; None for any other field."""
        return next((part for part in (self.type, *get_args(self.type)[:1]) if _has_fields(part)), None)

    @property
    def meaning(self) -> str:
        """The meaning, and what happens without the setting."""
        none = self.setting.none
        return f"{self.setting.meaning.rstrip('.')}; none: {none}." if none else self.setting.meaning

    @property
    def toml_type(self) -> str:
        """The type in words for people who write TOML."""
        return _type(self.type)


def setting_fields(settings: type, partly: bool = False) -> Iterator[SettingField]:
    """The fields of a dataclass or a msgspec Struct.

    Raises TypeError for one without a `Setting`; partly: passes it over.
    """
    hints = _hints(settings)
    for name, default in _defaults(settings):
        setting = _setting(hints[name])
        if setting is None and partly:
            continue
        if setting is None:
            raise TypeError(f"{settings.__name__}.{name} has no Setting in its annotation")
        plain = hints[name].__origin__
        rest = [arg for arg in get_args(plain) if arg is not NoneType]
        optional = NoneType in get_args(plain) and len(rest) == 1
        yield SettingField(name, rest[0] if optional else plain, default, setting)


@dataclass(frozen=True)
class SettingText:
    """A setting as text for people: `name` is dotted within a table, values are written as in TOML.

    settings: the example as a table, with the settings that it needs.
    """

    name: str
    type: str
    default: str
    range: str
    unit: str
    meaning: str
    example: str
    settings: Mapping[str, Any]


def list_settings(settings: type, without: tuple[str, ...] = ()) -> Iterator[SettingText]:
    """The settings of a dataclass or a msgspec Struct and of tables within it, except those in `without`.

    `without` has dotted names. Raises TypeError for a field without a `Setting` in its annotation.
    """
    for entry in setting_fields(settings):
        name, setting = entry.name, entry.setting
        if name in without or setting.by_task:
            continue
        example = {**setting.beside, name: setting.example}
        yield SettingText(
            name,
            entry.toml_type,
            entry.default if entry.default is REQUIRED else as_toml(entry.default),
            f"one of {', '.join(map(as_toml, get_args(entry.type)))}"
            if _is_choice(entry.type)
            else setting.range,
            setting.unit,
            entry.meaning,
            _pairs(example),
            example,
        )
        if entry.table and not entry.item:
            rest = tuple(path.removeprefix(f"{name}.") for path in without)
            yield from inside(name, list_settings(entry.table, rest))


def inside(table: str, rows: Iterable[SettingText]) -> Iterator[SettingText]:
    """Settings as those of a table with this dotted name."""
    for row in rows:
        nested = row.settings
        for name in reversed(table.split(".")):
            nested = {name: nested}
        yield dataclasses.replace(row, name=f"{table}.{row.name}", example=_pairs(nested), settings=nested)


def as_toml(value: object) -> str:
    """A value in TOML; "none" for None, which TOML does not have."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {_pairs(value)} }}" if value else "{}"
    if isinstance(value, msgspec.Struct):
        fields = {
            entry.name: (getattr(value, entry.name), entry.default) for entry in msgspec.structs.fields(value)
        }
        return as_toml({name: own for name, (own, usual) in fields.items() if own and own != usual})
    if dataclasses.is_dataclass(value):
        return "its defaults"
    return str(value)


def _pairs(table: Mapping[str, Any], before: str = "") -> str:
    """The keys and values of an inline table; a table within it that has one key becomes a dotted key."""
    return ", ".join(
        _pairs(value, f"{before}{key}.")
        if isinstance(value, Mapping) and len(value) == 1
        else f"{before}{key} = {as_toml(value)}"
        for key, value in table.items()
    )


def _defaults(settings: Any) -> Iterator[tuple[str, Any]]:
    """The name of each field, and its default; REQUIRED for none."""
    fields: Any = (
        msgspec.structs.fields(settings)
        if issubclass(settings, msgspec.Struct)
        else dataclasses.fields(settings)
    )
    missing = (dataclasses.MISSING, msgspec.NODEFAULT)
    for entry in fields:
        if entry.default not in missing:
            yield entry.name, entry.default
        else:
            yield entry.name, REQUIRED if entry.default_factory in missing else entry.default_factory()


@lru_cache(maxsize=64)
def _hints(settings: type) -> Mapping[str, Any]:
    return get_type_hints(settings, include_extras=True)


@lru_cache(maxsize=64)
def _limited(settings: type) -> tuple[tuple[str, Setting, float, float, float, float], ...]:
    """The fields with limits: name, setting, at least, more than, at most, less than."""
    pairs = ((name, _setting(hint)) for name, hint in _hints(settings).items())
    return tuple(
        (name, setting, setting.at_least, setting.more_than, setting.at_most, setting.less_than)
        for name, setting in pairs
        if setting is not None and setting.limited
    )


def _setting(hint: Any) -> Setting | None:
    return next((entry for entry in getattr(hint, "__metadata__", ()) if isinstance(entry, Setting)), None)


def _has_fields(hint: Any) -> bool:
    return isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint))


def _is_choice(hint: Any) -> bool:
    return get_origin(hint) is Literal


def _type(hint: Any) -> str:
    """The type of a field in words for people who write TOML."""
    if _is_choice(hint):
        return _type(type(get_args(hint)[0]))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}"
    words = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return words.get(hint, "table")
