"""Describes declared settings as JSON schemas, for the description of the REST API."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any, get_origin

import msgspec

from device_runtime.strategies.settings import REQUIRED, SettingField, setting_fields

PLACE = "#/components/schemas/"
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", tuple: "array"}


def setting_schemas(settings: type) -> dict[str, dict[str, Any]]:
    """The schemas of a class of settings and of those of the tables within it, by name."""
    fields = list(setting_fields(settings))
    schemas: dict[str, dict[str, Any]] = {
        settings.__name__: {
            "type": "object",
            "properties": {entry.name: _property(entry) for entry in fields},
            "required": [entry.name for entry in fields if entry.default is REQUIRED],
        }
    }
    for entry in fields:
        if entry.table is not None:
            schemas |= setting_schemas(entry.table)
    return schemas


def _property(entry: SettingField) -> dict[str, Any]:
    value = _value(entry)
    schema = {"type": "array", "items": value} if entry.item else value
    if entry.default is None:
        schema = {"anyOf": [schema, {"type": "null"}]}
    schema |= {"description": entry.meaning, "examples": [msgspec.to_builtins(entry.setting.example)]}
    if entry.default is not REQUIRED:
        schema["default"] = msgspec.to_builtins(entry.default)
    if entry.setting.unit != "-":
        schema["x-unit"] = entry.setting.unit
    return schema


def _value(entry: SettingField) -> dict[str, Any]:
    """The schema of the value, or of each item of a list."""
    if entry.table is not None:
        return {"$ref": f"{PLACE}{entry.table.__name__}"}
    if entry.choices:
        return {"type": _TYPES[type(entry.choices[0])], "enum": list(entry.choices)}
    plain = entry.item or entry.type
    return {"type": _TYPES.get(get_origin(plain) or plain, "object"), **dict(_limits(entry))}


def _limits(entry: SettingField) -> Iterator[tuple[str, float]]:
    setting = entry.setting
    limits = {
        "minimum": setting.at_least,
        "exclusiveMinimum": setting.more_than,
        "maximum": setting.at_most,
        "exclusiveMaximum": setting.less_than,
    }
    return ((name, limit) for name, limit in limits.items() if isfinite(limit))
