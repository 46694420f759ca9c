"""The settings that a sweep may vary, by name: of the task, its kinds, all kinds, the data, the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from types import NoneType
from typing import Any, get_args

import msgspec

from device_runtime.aggregator.errors import TaskError
from device_runtime.aggregator.tasks.closing import straggler_share
from device_runtime.aggregator.tasks.systems import SharedSettings
from device_runtime.aggregator.tasks.task import Task, check_effect
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.errors import ScenarioError
from device_runtime.simulation.scenarios.scenario import (
    NOT_OURS,
    Scenario,
    decode,
    stand_in_helpers,
)
from device_runtime.strategies.kinds import registry
from device_runtime.strategies.settings import SettingField, setting_fields

Value = bool | int | float | str | None
POLICY = "policy"
"""The name of the policy, which is varied as settings are."""
_OF_SCENARIO = {
    "devices": int,
    "slow": float,
    "stragglers": float,
    "engine": str,
    "precision": str,
    "choose": str,
}
_NOT_OF_TASK = (*NOT_OURS, "name", "keep_versions", "masks.helpers", "kinds")
_NOT_OF_DATA = ("source", "path", "test_path", "validation_share", "test_share", "max_test")
"""Fields of [data] that say on which samples points are judged."""
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
NOTHING = "none"
"""The text of a setting that is left out, where its default is none."""


@dataclass(frozen=True)
class SweptSetting:
    """A setting by its declared, dotted name, its place in a scenario's tables, and its type.

    field: its declaration, where it has one. A place in `kinds` has the name of the kind.
    """

    name: str
    place: tuple[str, ...]
    type: Any
    field: SettingField | None = None

    @property
    def expected(self) -> str:
        """The allowed values, in words."""
        if self.field is None:
            return _WORDS.get(_without_limits(self.type), "another value")
        if self.field.choices:
            return f"one of {', '.join(map(str, self.field.choices))}"
        limits = "" if self.field.setting.range == "-" else f", {self.field.setting.range}"
        none = f", or {NOTHING}" if self._optional else ""
        return f"{_WORDS.get(self.type, self.field.toml_type)}{limits}{none}"

    @property
    def _optional(self) -> bool:
        return self.field is not None and self.field.default is None

    def value(self, raw: Any) -> Value:
        """The value, converted from a text where it is one. Raises ScenarioError, with what was expected."""
        raw = raw.item() if hasattr(raw, "item") else raw  # a number of numpy
        if raw in (None, NOTHING) and self._optional:
            return None
        if self.field is not None and self.field.setting.has_text(raw):
            return str(raw)
        try:
            value: Value = msgspec.convert(raw, self.type, strict=not isinstance(raw, str))
        except msgspec.ValidationError as error:
            why = f" ({error})".replace("`", "").lower() if self.field is None else ""
            raise ScenarioError(f"{self.name}={raw}: expected {self.expected}{why}") from None
        limits = self.field.setting if self.field is not None and self.field.setting.limited else None
        if limits is not None and value is not None and not limits.allows(value):
            raise ScenarioError(f"{self.name}={raw}: expected {self.expected}")
        return value


def setting_named(name: str, scenario: Scenario) -> SweptSetting:
    """The setting of this name: dotted as in files, or as an option of `simulate`.

    A setting of one kind follows the kind's name: few-shot.shots, full.terms.fedprox.mu. Raises
    ScenarioError for an unknown one, with names like it.
    """
    key = _plain(name)
    if setting := _settings().get(key):
        return setting
    if kind := next((kind for kind in registry.kinds() if key.startswith(f"{_plain(kind)}.")), None):
        return _of_kind(kind, key[len(kind) + 1 :], scenario)
    candidates = (
        *_settings(),
        *(f"{kind.name}.{field}" for kind in scenario.task.kinds for field in ("lr",)),
    )
    near = get_close_matches(key, candidates, n=3, cutoff=0.6)
    hint = f"near it are {', '.join(near)}" if near else "such as lr, epochs, rounds, alpha, policy"
    raise ScenarioError(f"no setting is called {name!r}; {hint}; docs/task.md lists those of tasks and kinds")


def at_point(scenario: Scenario, values: Mapping[str, Value]) -> Scenario:
    """The scenario with these values, but for the policy. Raises ScenarioError."""
    table = msgspec.json.decode(scenario.json())
    if "round_deadline_s" in values:
        table.pop("stragglers", None)  # by which the deadline was to be found
    for name, value in values.items():
        if (share := straggler_share(value)) is not None:
            table["stragglers"] = share
        elif name != POLICY:
            _put(table, setting_named(name, scenario).place, value)
    try:
        check_effect({name: value for name, value in table["task"].items() if value is not None})
        return decode(msgspec.json.encode(table))
    except (ScenarioError, TaskError) as error:
        why = str(error).removeprefix("scenario: ")
        raise ScenarioError(f"{point_text(values)}: {why}") from None


def point_text(values: Mapping[str, Value]) -> str:
    """The values of a point: "lr=0.1, epochs=2"."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in values.items())


def value_text(value: Value) -> str:
    """A value as it is typed."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else NOTHING if value is None else str(value)


def _plain(name: str) -> str:
    return name.strip().replace("-", "_")


@cache
def _settings() -> Mapping[str, SweptSetting]:
    """All but those of single kinds, by their names and options; of equal names the first counts."""
    settings: dict[str, SweptSetting] = {POLICY: SweptSetting(POLICY, (POLICY,), str)}
    for table, declared, without in (
        ("all_kinds", SharedSettings, ()),
        ("task", Task, _NOT_OF_TASK),
    ):
        for name, field in _declared(declared):
            if name not in without:
                setting = SweptSetting(name, (table, *name.split(".")), field.type, field)
                settings.setdefault(_plain(name), setting)
                if field.setting.flag or "." not in name:
                    settings.setdefault(_plain(field.option), setting)
    for name, kind in _OF_SCENARIO.items():
        settings.setdefault(name, SweptSetting(name, (name,), kind))
    for each in msgspec.structs.fields(DataSpec):
        if each.name not in _NOT_OF_DATA and _without_limits(each.type) in _WORDS:
            settings.setdefault(each.name, SweptSetting(each.name, ("data", each.name), each.type))
    return settings


def _without_limits(hint: Any) -> Any:
    """The type of a field of the data, without limits and None."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    hint = parts[0] if NoneType in get_args(hint) else hint
    return getattr(hint, "__origin__", hint)


def _declared(settings: type, within: str = "") -> Iterator[tuple[str, SettingField]]:
    """The declared settings with one value, by their dotted names."""
    for field in setting_fields(settings, partly=True):
        if field.setting.by_task:
            continue
        name = f"{within}{field.name}"
        if field.type in _WORDS or field.choices:
            yield name, field
        elif field.table is not None and field.item is None:
            yield from _declared(field.table, f"{name}.")


def _of_kind(kind: str, name: str, scenario: Scenario) -> SweptSetting:
    offered = [each.name for each in scenario.task.kinds]
    if kind not in offered:
        raise ScenarioError(f"{kind}.{name}: the task offers {', '.join(offered)}, and not {kind}")
    place = ("kinds", kind, *name.split("."))
    declared = {_plain(name): field for name, field in _declared(registry.kind(kind))}
    if name in declared:
        return SweptSetting(f"{kind}.{name}", place, declared[name].type, declared[name])
    term, dot, inner = name.removeprefix(f"{registry.TERMS_SETTING}.").partition(".")
    terms = {_plain(name): (name, each) for name, each in registry.terms().items()}
    if name.startswith(f"{registry.TERMS_SETTING}.") and dot and term in terms:
        term, declared_by = terms[term]
        fields = dict(_declared(declared_by))
        if inner in fields:
            place = ("kinds", kind, registry.TERMS_SETTING, term, inner)
            return SweptSetting(f"{kind}.terms.{term}.{inner}", place, fields[inner].type, fields[inner])
    of_terms = ["terms.TERM.SETTING"] if hasattr(registry.kind(kind), registry.TERMS_SETTING) else []
    listed = ", ".join((*declared, *of_terms))
    raise ScenarioError(f"{kind} has no setting {name!r}; there are {listed}: `device-runtime kinds {kind}`")


def _put(table: dict[str, Any], place: tuple[str, ...], value: Value) -> None:
    """Puts a value into the tables of a scenario."""
    if place[0] == "kinds":
        inner = next(kind for kind in table["task"]["kinds"] if kind["name"] == place[1])["settings"]
        place = place[2:]
    else:
        inner = table
    for step in place[:-1]:
        if inner.get(step) is None:
            inner[step] = stand_in_helpers({}) if step == "masks" else {}
        inner = inner[step]
    inner[place[-1]] = value
