"""Describes declared settings as JSON schemas, for the description of the REST API."""

from __future__ import annotations

from math import isfinite
from typing import Any

import msgspec

from device_runtime.strategies.settings import REQUIRED, SettingField, setting_fields

PLACE = "#/components/schemas/{name}"
LIMITS = {
    "minimum": "at_least",
    "exclusiveMinimum": "more_than",
    "maximum": "at_most",
    "exclusiveMaximum": "less_than",
}
"""Keywords of JSON schemas, and the limits of a `Setting`."""


def setting_schemas(settings: type) -> dict[str, dict[str, Any]]:
    """The schemas of a class of settings and of those of the tables within it, by name."""
    _, schemas = msgspec.json.schema_components([settings], ref_template=PLACE)
    tables = [settings, *(entry.table for entry in setting_fields(settings) if entry.table)]
    for table in tables:
        properties = schemas[table.__name__]["properties"]
        for entry in setting_fields(table):
            _complete(properties[entry.name], entry)
    return schemas


def _complete(schema: dict[str, Any], entry: SettingField) -> None:
    """Adds the meaning, an example, the default, the unit, and the limits or choices."""
    setting = entry.setting
    schema |= {"description": entry.meaning, "examples": [msgspec.to_builtins(setting.example)]}
    if entry.default is not REQUIRED:
        schema["default"] = msgspec.to_builtins(entry.default)
    if setting.unit != "-":
        schema["x-unit"] = setting.unit
    value = schema["anyOf"][0] if "anyOf" in schema else schema
    value = value.get("items", value)
    value |= {key: limit for key, name in LIMITS.items() if isfinite(limit := getattr(setting, name))}
    if setting.choices:
        value["enum"] = list(setting.choices)
