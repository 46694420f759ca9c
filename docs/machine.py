"""Writes the diagram and the tables of docs/device-machine.md: python docs/machine.py

The transitions are those of random orders of events (tests/device/machine/modelled.py), enough of them to see
each. A test checks that the page is as it is generated now.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from device_runtime.device.machine import events
from device_runtime.device.machine.events import REASONS, DeviceCommand, DeviceEvent
from device_runtime.device.machine.state import DeviceState
from tests.device.machine.modelled import World

_WALKS, _STEPS = 1000, 100
_PHASES = ("idle", "fetching", "ready", "training", "awaiting_receipt", "evaluating")

Changes = dict[tuple[str, str], set[str]]
"""Names of events, by the phase before and the phase after."""


@cache
def changes() -> Changes:
    """All changes of phase that occur."""
    found: Changes = {}

    def saw(before: DeviceState, event: DeviceEvent, _commands: object, after: DeviceState) -> None:
        if before.phase != after.phase:
            found.setdefault((before.phase, after.phase), set()).add(type(event).__name__)

    for seed in range(_WALKS):
        World(random.Random(seed), saw).run(_STEPS)  # noqa: S311 (nothing is secret)
    return found


def diagram() -> str:
    """A Mermaid diagram of all changes of phase."""
    lines = [f"    {before} --> {after}" for before, after in _sorted(changes())]
    return "\n".join(("```mermaid", "stateDiagram-v2", "    [*] --> idle", *lines, "```"))


def transitions() -> str:
    """Which events lead from which phase to which."""
    found = changes()
    rows = (
        (before.replace("_", " "), after.replace("_", " "), _listed(found[before, after]))
        for before, after in _sorted(found)
    )
    return _table(("phase", "next phase", "events"), rows)


def reasons() -> str:
    """Each end of a round on a device."""
    return _table(("reason", "meaning"), ((f"`{reason}`", text) for reason, text in REASONS.items()))


def events_table() -> str:
    return _table(("event", "meaning"), _described(events, DeviceEvent))


def commands_table() -> str:
    return _table(("command", "what the runner does"), _described(events, DeviceCommand))


def _described(module: ModuleType, base: type) -> Iterable[tuple[str, str]]:
    """The classes of a module that are derived from this one, with the first sentence of what they are."""
    for name, kind in vars(module).items():
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base:
            yield f"`{name}`", " ".join((kind.__doc__ or "").split("\n\n")[0].split())


def _sorted(found: Changes) -> list[tuple[str, str]]:
    return sorted(found, key=lambda pair: (_PHASES.index(pair[0]), _PHASES.index(pair[1])))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


PARTS: dict[str, Callable[[], str]] = {
    "diagram": diagram,
    "transitions": transitions,
    "reasons": reasons,
    "events": events_table,
    "commands": commands_table,
}


def refreshed(page: str) -> str:
    """The page with every part in it generated anew."""
    for name, part in PARTS.items():
        head, opening, rest = page.partition(f"<!-- {name} -->\n")
        _, closing, tail = rest.partition(f"<!-- /{name} -->")
        if opening and closing:
            page = f"{head}{opening}{part()}\n{closing}{tail}"
    return page


if __name__ == "__main__":
    page = Path(__file__).with_name("device-machine.md")
    page.write_text(refreshed(page.read_text("utf-8")), "utf-8")
