"""Makes a command's options from declared settings (`strategies.settings`), and reads the given values."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from device_runtime.cli.options import listed
from device_runtime.strategies.settings import REQUIRED, SettingField, setting_fields

NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})


def add_settings(
    options: argparse._ActionsContainer,
    settings: type,
    without: Collection[str] = (),
    defaults: Mapping[str, object] = NO_DEFAULTS,
) -> None:
    """Adds an option for each setting, which refuses values beyond the setting's limits.

    `without`: dotted names of settings that get none. A setting in a table has an option if it declares its
    `flag`. defaults: others than the fields' own, for the help.
    """
    for name, entry in _optional(settings, without):
        how: dict[str, Any] = {"metavar": _metavar(entry)}
        if entry.choices:
            how = {"choices": entry.choices}
        elif entry.type is bool:
            how = {"action": argparse.BooleanOptionalAction if entry.default else "store_true"}
        elif entry.type in (int, float):
            how["type"] = partial(_number, entry)
        elif entry.type is Path:
            how["type"] = Path
        text = _help(entry, defaults.get(name, entry.default))
        options.add_argument(f"--{entry.option}", default=None, help=text.replace("%", "%%"), **how)


def option_values(
    options: argparse.Namespace, settings: type, without: Collection[str] = ()
) -> dict[str, Any]:
    """The values of the options that were given, as keys and tables of the settings."""
    table: dict[str, Any] = {}
    for name, entry in _optional(settings, without):
        value = getattr(options, entry.option.replace("-", "_"))
        if value is not None:
            *outer, key = name.split(".")
            inner = table
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[key] = listed(value) if entry.item else value
    return table


def _optional(
    settings: type, without: Collection[str], within: str = ""
) -> Iterator[tuple[str, SettingField]]:
    """The settings that have an option, by their dotted names."""
    for entry in setting_fields(settings, partly=True):
        name = f"{within}{entry.name}"
        if name in without:
            continue
        if entry.table is None and (entry.setting.flag or not within):
            yield name, entry
        elif entry.table is not None and not entry.item:
            yield from _optional(entry.table, without, f"{name}.")


def _metavar(entry: SettingField) -> str:
    """The name of a value in help texts, by its unit: ROUNDS, SECONDS."""
    if entry.setting.metavar:
        return entry.setting.metavar
    if entry.setting.unit != "-":
        return entry.setting.unit.split()[-1].upper()
    return "A,B,.." if entry.item else {int: "N", float: "X"}.get(entry.type, "NAME")


def _help(entry: SettingField, default: Any) -> str:
    text = "" if default is REQUIRED or not default else str(default)
    if isinstance(default, bool):
        text = "yes" if default else ""
    elif isinstance(default, int | float):
        text = f"{default:.15g}"
    elif entry.item:
        text = ", ".join(default or ())
    if not default and entry.setting.none:
        text = entry.setting.none
    meaning = entry.setting.meaning
    return f"{meaning.rstrip('.')} (default: {text})." if text else meaning


def _number(entry: SettingField, text: str) -> int | float | str:
    """An argument that is a number within the setting's limits, or a text by which it is found."""
    if entry.setting.has_text(text):
        return text
    try:
        value: int | float = entry.type(text)
        if entry.setting.allows(value):
            return value
    except ValueError:
        pass
    limits = "" if entry.setting.range == "-" else f", {entry.setting.range}"
    or_text = f', or such as "{entry.setting.text_example}"' if entry.setting.or_text else ""
    raise argparse.ArgumentTypeError(f"{text!r}: expected a {entry.toml_type}{limits}{or_text}")
