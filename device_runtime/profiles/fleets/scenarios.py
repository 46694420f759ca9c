"""Fleets: shares of device profiles that differ, come and go, and fail; from TOML, drawn by a seed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from device_runtime.content import content
from device_runtime.profiles.keys import explained
from device_runtime.profiles.shipped import ProfileError

from .chances import Chances
from .drawing import draw
from .fleet import BatterySpec, Fleet
from .groups import Group

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["BatterySpec", "Chances", "Fleet", "FleetSpec", "Group", "load", "preset_names", "read"]

_SHARES_OFF = 1e-6
"""How far from 1 the shares may sum up: what is lost in writing thirds as decimals."""


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a fleet is made of; raises ProfileError for what cannot be meant.

    A run begins at `begins_h`, the hour of the fleet's day.
    """

    name: str
    groups: dict[str, Group]
    begins_h: float = 0.0

    def __post_init__(self) -> None:
        if not self.groups:
            raise ProfileError("groups are missing: expected one table [groups.NAME] or more")
        for name, group in self.groups.items():
            group.check(name)
        total = sum(group.share for group in self.groups.values())
        if abs(total - 1) > _SHARES_OFF:
            shares = ", ".join(f"{name} {group.share:g}" for name, group in self.groups.items())
            raise ProfileError(f"shares are {shares}: {total:g} in all, expected 1")
        if not 0 <= self.begins_h <= 24:
            raise ProfileError(f"begins_h is {self.begins_h}, expected a number 0 or more, 24 at most")

    def draw(self, devices: int, seed: int) -> Fleet:
        """This many devices; the same for the same seed (0 or more), in whichever order groups are written.

        Raises ProfileError.
        """
        if devices < 1:
            raise ProfileError(f"a fleet of {devices} devices: expected 1 or more")
        if seed < 0:
            raise ProfileError(f"seed is {seed}, expected 0 or more")
        # by name, as in the JSON in which a simulation's runs are given the fleet
        spec = msgspec.structs.replace(self, groups=dict(sorted(self.groups.items())))
        return Fleet(spec, seed, draw(tuple(spec.groups.values()), devices, seed, self.begins_h))


def preset_names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _presets().glob("*.toml")))


def load(path_or_preset: str | Path) -> FleetSpec:
    """The fleet of a TOML file, or the preset of that name. Raises ProfileError."""
    path = Path(path_or_preset)
    if str(path_or_preset) in preset_names():
        text = (_presets() / f"{path_or_preset}.toml").read_text("utf-8")
    elif path.suffix != ".toml":
        known = ", ".join(preset_names())
        raise ProfileError(f"no fleet named {str(path)!r}: give a file *.toml or one of {known}")
    else:
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise ProfileError(
                f"cannot read fleet {path}: {(error.strerror or str(error)).lower()}"
            ) from None
        except ValueError as error:
            raise ProfileError(f"fleet {path} is not text: {error}") from None
    try:
        table = tomllib.loads(text)
    except ValueError as error:
        raise ProfileError(f"fleet {path} is not TOML: {error}") from None
    try:
        return read({"name": path.stem, **table})
    except ProfileError as error:
        raise ProfileError(f"fleet {path}: {error}") from None


def read(table: Mapping[str, Any]) -> FleetSpec:
    """A fleet from its table, as TOML gives it. Raises ProfileError."""
    groups = table.get("groups")
    if isinstance(groups, dict):
        for name, group in groups.items():
            try:
                msgspec.convert(group, Group)
            except msgspec.ValidationError as error:
                raise ProfileError(explained(error, Group, f"groups.{name}")) from None
    try:
        return msgspec.convert(table, FleetSpec)
    except msgspec.ValidationError as error:
        raise ProfileError(explained(error, FleetSpec)) from None


def _presets() -> Path:
    return content("profiles") / "fleets"
