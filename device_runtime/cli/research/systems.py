"""`device-runtime systems`: lists the systems that can run a task, or all settings of one."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from device_runtime.aggregator.errors import AggregatorError
from device_runtime.cli.options import add_format, as_json

if TYPE_CHECKING:
    from device_runtime.aggregator.tasks.task import Task

ERRORS = (AggregatorError,)


@dataclass(frozen=True)
class OfferedKind:
    """A kind of update that the system offers, with every setting."""

    kind: str
    from_round: int
    until_round: int | None
    settings: dict[str, Any]
    unset: dict[str, str]
    """What a setting without a value stands for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="Show this system, with all that it sets (default: list all systems).",
    )
    parser.add_argument(
        "--rounds", type=int, default=50, help="Show it for a task of this many rounds (default: 50)."
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Raises TaskError for an unknown name."""
    if options.name is None:
        _print_all(options.format)
    else:
        _print_one(options)
    return 0


def _print_all(form: str) -> None:
    from tabulate import tabulate

    from device_runtime.aggregator.tasks import systems
    from device_runtime.aggregator.tasks.known_systems import SYSTEMS

    if form == "json":
        entries = {name: {"says": system.says, "source": system.source} for name, system in SYSTEMS.items()}
        print(as_json(entries))
        return
    print(
        tabulate([(name, system.says, system.source) for name, system in SYSTEMS.items()], tablefmt="plain")
    )
    print("\nmodifiers, after a name")
    for name, says in systems.MODIFIERS.items():
        print(f"  +{name:12}{says}")
    alone = [name for name in systems.names() if name not in SYSTEMS]
    print(f"\nbesides, one kind of update alone, for every device: {', '.join(alone)}")


def _print_one(options: argparse.Namespace) -> None:
    from tabulate import tabulate

    from device_runtime.aggregator.tasks import systems
    from device_runtime.aggregator.tasks.task import Task

    task = systems.task_as_system(options.name, Task(bundle="any", rounds=options.rounds))
    parts = tuple(_offered(task))
    if options.format == "json":
        print(as_json(parts))
        return
    print(f"{options.name}: {systems.describe(options.name)}")
    start = "the bundle's" if task.start == "bundle" else "fresh"
    print(f"server optimiser {task.server.name}; starts from {start} parameters; {_deadlines(task)}")
    for part in parts:
        until = part.until_round or task.rounds
        print(f"\n{part.kind}, rounds {part.from_round} to {until}")
        rows = [(f"  {key}", part.unset.get(key, value)) for key, value in part.settings.items()]
        print(tabulate(rows, tablefmt="plain"))


def _offered(task: Task) -> Iterator[OfferedKind]:
    from device_runtime.strategies.kinds import registry

    for kind in task.kinds:
        settings = registry.settings(kind.strategy)
        rows = registry.list_settings(type(kind.strategy))
        meanings = {row.name: row.meaning.partition("none: ")[2].rstrip(".") for row in rows}
        unset = {key: meanings.get(key) or "none" for key, value in settings.items() if value in (None, "")}
        yield OfferedKind(kind.name, kind.from_round, kind.until_round, settings, unset)


def _deadlines(task: Task) -> str:
    if not task.untimed_rounds:
        return "every round has its deadline"
    return f"the first {task.untimed_rounds} of {task.rounds} rounds have no deadline"
