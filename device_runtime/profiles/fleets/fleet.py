"""Fleets for simulations: read from TOML, drawn by a seed, and the figures of each drawn device.

A fleet has groups. Each group has a share of the devices, a shipped profile, and spreads by which its devices
differ from that profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.content import content, explained, read_toml
from device_runtime.profiles.device import Bandwidth, DeviceProfile, Memory, ProfileError, Speed, shipped

from .draws import Draws, redrawn_order
from .groups import Availability, DisturbanceRates, Disturbances, FleetGroup

__all__ = ["BatterySpec", "Disturbances", "Fleet", "FleetGroup", "FleetSpec", "load", "preset_names", "read"]

_SHARES_OFF = 1e-6
"""The sum of the shares may differ from 1 by this much, since thirds are rounded to decimals."""


class FleetSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The groups of a fleet, and the hour of its day at which a run begins.

    redrawn: which devices are in which group is drawn anew for every round, so that a straggler is not one
    for good. Raises ProfileError for invalid settings.
    """

    name: str
    groups: dict[str, FleetGroup]
    begins_h: float = 0.0
    redrawn: bool = False

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
        for name, group in self.groups.items():
            if self.redrawn and (group.windows or group.battery or group.members):
                what = "windows, a battery or members, which devices of a redrawn fleet cannot keep"
                raise ProfileError(f"groups.{name} has {what}")

    @classmethod
    def load(cls, path_or_preset: str | Path) -> FleetSpec:
        """The fleet of a TOML file, or the preset of that name. Raises ProfileError.

        >>> FleetSpec.load("phones").name
        'phones'
        """
        return load(path_or_preset)

    @classmethod
    def of(cls, name: str, groups: Mapping[str, Any], begins_h: float = 0.0) -> FleetSpec:
        """A fleet of groups, each as a table of docs/fleets.md. Raises ProfileError.

        >>> one = {"profile": "pi-5", "share": 1.0, "speed": {"factor": 0.5}}
        >>> FleetSpec.of("mine", {"slow": one}).groups["slow"].speed.factor
        0.5
        """
        return read({"name": name, "groups": dict(groups), "begins_h": begins_h})

    def draw(self, devices: int, seed: int) -> Fleet:
        """Draws this many devices. The same seed (0 or more) gives the same devices, in any order of groups.

        Raises ProfileError.
        """
        if devices < 1:
            raise ProfileError(f"a fleet of {devices} devices: expected 1 or more")
        if seed < 0:
            raise ProfileError(f"seed is {seed}, expected 0 or more")
        # sorted by name, as in the JSON by which a simulation passes the fleet to its runs
        spec = msgspec.structs.replace(self, groups=dict(sorted(self.groups.items())))
        return Fleet(spec, seed, Draws(tuple(spec.groups.values()), devices, seed, self.begins_h))


def preset_names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in _presets().glob("*.toml")))


def load(path_or_preset: str | Path) -> FleetSpec:
    """Reads the fleet of a TOML file, or the preset of that name. Raises ProfileError."""
    path = Path(path_or_preset)
    if str(path_or_preset) in preset_names():
        path = _presets() / f"{path_or_preset}.toml"
    elif path.suffix != ".toml":
        names = ", ".join(preset_names())
        raise ProfileError(f"no fleet named {str(path)!r}: give a file *.toml or one of {names}")
    table = read_toml(path, ProfileError)
    try:
        return read({"name": path.stem, **table})
    except ProfileError as error:
        raise ProfileError(f"fleet {path}: {error}") from None


def read(table: Mapping[str, Any]) -> FleetSpec:
    """Makes a fleet from its parsed TOML table. Raises ProfileError."""
    groups = table.get("groups")
    if isinstance(groups, dict):
        for name, group in groups.items():
            try:
                msgspec.convert(group, FleetGroup)
            except msgspec.ValidationError as error:
                raise ProfileError(explained(error, FleetGroup, f"groups.{name}")) from None
    try:
        return msgspec.convert(table, FleetSpec)
    except msgspec.ValidationError as error:
        raise ProfileError(explained(error, FleetSpec)) from None


def _presets() -> Path:
    return content("profiles") / "fleets"


_EMPTY: Mapping[str, float] = {}


@dataclass(frozen=True)
class BatterySpec:
    """The battery of one device: joules, watts while charging, level at the start, least level to take part.

    Levels are 0 to 1. The battery charges while the device is available.
    """

    capacity_j: float
    charge_w: float
    start: float
    minimum: float


@dataclass(frozen=True, eq=False)
class Fleet:
    """The drawn devices, 0 to n - 1; times `t` are seconds since the run began.

    It takes 2 bytes a device, 8 more for each property that a group varies, and 16 if any has windows.
    order: whose figures each device has, (n,), where they are redrawn for every round; None: its own.
    """

    spec: FleetSpec
    seed: int
    draws: Draws
    order: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return self.draws.devices

    def name(self, i: int) -> str:
        """Group and index: "pi-5-00042"; at most 64 characters, all allowed in a level of an MQTT topic."""
        return f"{self._names[self._group(i)]}-{i:0{self._digits}d}"

    def index(self, name: str) -> int:
        """The index of the device of that name. Raises ProfileError if there is none."""
        digits = name.rpartition("-")[2]
        if digits.isdecimal() and int(digits) < len(self) and self.name(int(digits)) == name:
            return int(digits)
        raise ProfileError(f"fleet {self.spec.name} of {len(self)} devices has none named {name!r}")

    def group(self, i: int) -> str:
        return self._names[self._group(i)]

    def profile(self, i: int, corrections: Mapping[str, float] = _EMPTY) -> DeviceProfile:
        """The profile of device i, named after its board, with the given corrections.

        Parts that do not vary in its group are shared objects.
        """
        i = self._whose(i)
        base, memory, speed, bandwidth = self._shared[self.draws.group.item(i)]
        if memory is not None and speed is not None and bandwidth is not None and not corrections:
            return base
        if memory is None:
            memory = replace(base.memory, limit_bytes=self.draws.memory.item(i))
        if speed is None:
            speed = Speed(base.speed.flops_per_s * self.draws.speed.item(i), _EMPTY, base.speed.source)
        if bandwidth is None:
            link, median = self.draws.link.item(i), base.bandwidth
            bandwidth = Bandwidth(median.up * link, median.down * link, median.source)
        power = base.power
        return DeviceProfile(base.name, base.cores, memory, speed, bandwidth, power, corrections=corrections)

    def members(self, i: int) -> tuple[str, ...]:
        """The models of a task's family that device i trains; () for any."""
        return self._groups[self._group(i)].members

    def in_round(self, number: int) -> Fleet:
        """The fleet as it is in a round: where it is redrawn, every device has the figures of some device.

        Take names from the fleet that was drawn first: those of the returned one are of other devices.
        """
        if not self.spec.redrawn:
            return self
        return replace(self, order=redrawn_order(len(self), self.seed, number))

    def latency_s(self, i: int) -> float:
        """Seconds that are added to each transfer, whatever its size."""
        return self._groups[self._group(i)].link.latency_s

    def battery(self, i: int) -> BatterySpec | None:
        """The battery of device i; None for a device on mains."""
        cell = self._groups[self._group(i)].battery
        if cell is None:
            return None
        return BatterySpec(cell.wh * 3600, cell.charge_w, self.draws.charge.item(i), cell.minimum)

    def available(self, i: int, t: float) -> bool:
        return self._always or self._availability.available(i, t)

    def until(self, i: int, t: float) -> float:
        """The time at which device i leaves again: inf for never, `t` if it is not available now."""
        return inf if self._always else self._availability.until(i, t)

    def next(self, i: int, t: float) -> float:
        """The next time at which device i is available: `t` if it is now, inf for never."""
        return t if self._always else self._availability.next(i, t)

    def present(self, t: float) -> NDArray[np.bool_]:
        """Which devices are available, bool (n,)."""
        return np.ones(len(self), bool) if self._always else self._availability.present(t)

    def disturbances(self, devices: NDArray[np.int64], rng: np.random.Generator) -> Disturbances:
        """Draws slowdowns and failures of these devices for one round.

        Always takes the same count of numbers from `rng`.
        """
        whose = devices if self.order is None else self.order[devices]
        return self._disturbance_rates.draw(self.draws.group[whose], rng)

    def _whose(self, i: int) -> int:
        """The device whose figures device i has."""
        return i if self.order is None else self.order.item(i)

    def _group(self, i: int) -> int:
        return self.draws.group.item(self._whose(i))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.spec.groups)

    @cached_property
    def _groups(self) -> tuple[FleetGroup, ...]:
        return tuple(self.spec.groups.values())

    @cached_property
    def _shared(self) -> tuple[_Shared, ...]:
        return tuple(_shared(group) for group in self._groups)

    @cached_property
    def _digits(self) -> int:
        return max(5, len(str(len(self) - 1)))

    @cached_property
    def _disturbance_rates(self) -> DisturbanceRates:
        return DisturbanceRates.of(self._groups)

    @cached_property
    def _always(self) -> bool:
        """Whether all devices are always available."""
        return not any(group.windows for group in self._groups)

    @cached_property
    def _availability(self) -> Availability:
        return Availability(self.draws.windows)


_Shared = tuple[DeviceProfile, Memory | None, Speed | None, Bandwidth | None]


def _shared(group: FleetGroup) -> _Shared:
    """The profile at the group's medians; then memory, speed and bandwidth, each None if it varies."""
    base, link = shipped(group.profile), group.link
    if link.up_bytes_per_s is not None or link.down_bytes_per_s is not None:
        up = link.up_bytes_per_s or base.bandwidth.up
        down = link.down_bytes_per_s or base.bandwidth.down
        base = replace(base, bandwidth=Bandwidth(up, down, "fleet"))
    varied = group.memory.sigma > 0 or group.memory.limit_mb is not None
    speeds = group.speed.sigma > 0 or group.speed.factor != 1
    return (
        base,
        None if varied else base.memory,
        None if speeds else base.speed,
        None if link.sigma > 0 else base.bandwidth,
    )
