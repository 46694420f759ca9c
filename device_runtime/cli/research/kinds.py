"""`device-runtime kinds`: lists the kinds of update that a round may offer, or the settings of one."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from device_runtime.cli.options import add_format, add_plugins, as_json, load_plugins

if TYPE_CHECKING:
    from device_runtime.strategies.interface.kind import AnyStrategy
    from device_runtime.strategies.settings import SettingText


BY_CLASS = "It works by class: it applies only to bundles whose loss is cross-entropy (docs/losses.md).\n\n"
BY_STRATUM = (
    "It works by class. With other losses than cross-entropy it applies where the served head is in closed\n"
    "form, by stratum (docs/losses.md).\n\n"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="Show this kind, with its settings (default: list all kinds)."
    )
    add_plugins(parser)
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Raises KindError for an unknown name."""
    load_plugins(options)
    from device_runtime.strategies.kinds import registry

    if options.name is None:
        print(as_json(_overview()) if options.format == "json" else _kinds())
        return 0
    kind = registry.kind(options.name)
    settings = list(registry.list_settings(kind))
    print(as_json(_described(kind, settings)) if options.format == "json" else _settings(kind, settings))
    return 0


def _overview() -> list[dict[str, str]]:
    from device_runtime.strategies.kinds import registry

    return [{"name": name, **asdict(kind.about)} for name, kind in registry.kinds().items()]


def _kinds() -> str:
    from tabulate import tabulate

    from device_runtime.strategies.kinds import registry

    rows = [tuple(row.values()) for row in _overview()]
    head, usual = ("kind", "a device trains", "and sends", "method"), ", ".join(registry.DEFAULT_KINDS)
    return (
        f"{tabulate(rows, head, maxcolwidths=[None, 36, 30, 40])}\n\n"
        f"A round offers {usual}\n"
        "(and width-slice, if the bundle has narrower parts and its loss is not of classes),\n"
        "where the task does not say which: by serve --kinds, or by [[kinds]] in the file of the task.\n"
        "The settings of one: device-runtime kinds NAME"
    )


def _described(kind: type[AnyStrategy], settings: list[SettingText]) -> dict[str, object]:
    return {"name": kind.name, **asdict(kind.about), "settings": [_plain(row) for row in settings]}


def _plain(row: SettingText) -> dict[str, object]:
    return {key: value for key, value in asdict(row).items() if key != "settings"}


def _settings(kind: type[AnyStrategy], settings: list[SettingText]) -> str:
    from tabulate import tabulate

    rows = [(row.name, row.default, row.range, row.unit, row.meaning) for row in settings]
    head = ("setting", "default", "range", "unit", "meaning")
    return (
        f"{kind.name}: a device trains {kind.about.trains}; it sends {kind.about.sends}.\n"
        f"{kind.about.source}\n\n"
        f"{(BY_STRATUM if kind.traits.statistics_alone else BY_CLASS) if kind.traits.by_class else ''}"
        f"{tabulate(rows, head, disable_numparse=True, maxcolwidths=[None, 20, 26, None, 46])}\n\n"
        f"In the file of a task (docs/task.md), for example:\n\n{example(kind, settings)}"
    )


def example(kind: type[AnyStrategy], settings: list[SettingText]) -> str:
    """The kind in a task file, with its most used settings, or else its first three."""
    chosen = [row for row in settings if row.name in ("epochs", "lr", "batch")] or settings[:3]
    pairs = ", ".join(row.example for row in chosen)
    return f'[[kinds]]\nname = "{kind.name}"\nsettings = {{ {pairs} }}'
