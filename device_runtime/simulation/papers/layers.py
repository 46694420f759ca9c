"""What a table, a scale, a column or a row says about the setting: layers, the later over the earlier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from device_runtime.strategies.kind import Settings


class Deadline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`full` times what a full update takes on a device of the fleet's `group` that holds a mean share.

    Download and upload with it; to two digits. `full` of 0 is no limit to speak of: a day.
    """

    full: float = 0.0
    group: str = "fast"


class Layer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is said here; the rest is as in the layers below.

    `fleet` is a name in shared.toml or a fleet preset, `bundle` and those of the `family` names in
    shared.toml or shipped bundles. `kinds` are those that mixed rounds offer. `settings` by kind of update;
    `data`, `task` as in a scenario. There are `times` as many rounds as `task` says, for who has shorter
    ones.
    """

    devices: int | None = None
    slow: float | None = None
    eval_every: int | None = None
    fleet: str | None = None
    bundle: str | None = None
    family: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    deadline: Deadline | None = None
    times: float | None = None
    data: dict[str, Any] = {}
    task: dict[str, Any] = {}
    settings: dict[str, Settings] = {}


def over(layers: Iterable[Layer]) -> Layer:
    """All of them as one."""
    whole: dict[str, Any] = {}
    for layer in layers:
        for name in layer.__struct_fields__:
            value = getattr(layer, name)
            if isinstance(value, dict):
                whole[name] = _merged(whole.get(name, {}), value)
            elif value is not None:
                whole[name] = value
    return Layer(**whole)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
