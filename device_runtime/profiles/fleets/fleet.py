"""The drawn devices of a fleet: the figures of each, when it is there, what may befall it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from device_runtime.profiles.device import Bandwidth, DeviceProfile, Memory, Speed
from device_runtime.profiles.shipped import ProfileError, shipped

from .availability import Availability
from .chances import Chances, Odds
from .drawing import Draws
from .groups import Group

if TYPE_CHECKING:
    from .scenarios import FleetSpec


_NOTHING: Mapping[str, float] = {}


@dataclass(frozen=True)
class BatterySpec:
    """Capacity in joules, watts while charging, level at the start and least level for taking part (0 to 1).

    It charges while the device is available.
    """

    capacity_j: float
    charge_w: float
    start: float
    minimum: float


@dataclass(frozen=True, eq=False)
class Fleet:
    """The drawn devices, 0 to n - 1; times `t` are seconds since the run began. Holds about 60 bytes each."""

    spec: FleetSpec
    seed: int
    draws: Draws

    def __len__(self) -> int:
        return len(self.draws.group)

    def name(self, i: int) -> str:
        """Group and index: "pi-5-00042"; at most 64 characters that a topic level may have."""
        return f"{self._names[self.draws.group.item(i)]}-{i:0{self._digits}d}"

    def index(self, name: str) -> int:
        """The device of that name. Raises ProfileError for a name that none has."""
        digits = name.rpartition("-")[2]
        if digits.isdecimal() and int(digits) < len(self) and self.name(int(digits)) == name:
            return int(digits)
        raise ProfileError(f"fleet {self.spec.name} of {len(self)} devices has none named {name!r}")

    def group(self, i: int) -> str:
        return self._names[self.draws.group.item(i)]

    def profile(self, i: int, corrections: Mapping[str, float] = _NOTHING) -> DeviceProfile:
        """This device's own figures, and the corrections that it has learnt. Named as the board is.

        What does not vary in its group is shared.
        """
        g = self.draws.group.item(i)
        base, memory, speed, bandwidth = self._shared[g]
        if memory is not None and speed is not None and bandwidth is not None and not corrections:
            return base
        if memory is None:
            memory = replace(base.memory, limit_bytes=self.draws.memory.item(i))
        if speed is None:
            speed = Speed(base.speed.flops_per_s * self.draws.speed.item(i), _NOTHING, base.speed.source)
        if bandwidth is None:
            link, median = self.draws.link.item(i), base.bandwidth
            bandwidth = Bandwidth(median.up * link, median.down * link, median.source)
        power = base.power
        return DeviceProfile(base.name, base.cores, memory, speed, bandwidth, power, corrections=corrections)

    def latency_s(self, i: int) -> float:
        """Seconds that every transfer takes beside its bytes."""
        return self._groups[self.draws.group.item(i)].link.latency_s

    def battery(self, i: int) -> BatterySpec | None:
        """None for a device on mains."""
        cell = self._groups[self.draws.group.item(i)].battery
        if cell is None:
            return None
        return BatterySpec(cell.wh * 3600, cell.charge_w, self.draws.charge.item(i), cell.minimum)

    def available(self, i: int, t: float) -> bool:
        return self._availability.available(i, t)

    def until(self, i: int, t: float) -> float:
        """When device i goes away again: inf for never, `t` if it is not there now."""
        return self._availability.until(i, t)

    def next(self, i: int, t: float) -> float:
        """When device i is there: `t` if it is now, inf for one that never comes."""
        return self._availability.next(i, t)

    def present(self, t: float) -> NDArray[np.bool_]:
        """Which devices are there, bool (n,)."""
        return self._availability.present(t)

    def chances(self, devices: NDArray[np.int64], rng: np.random.Generator) -> Chances:
        """What befalls these devices, asked now; takes as many numbers of `rng` whatever can happen."""
        return self._odds.draw(self.draws.group[devices], rng)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.spec.groups)

    @cached_property
    def _groups(self) -> tuple[Group, ...]:
        return tuple(self.spec.groups.values())

    @cached_property
    def _shared(self) -> tuple[_Shared, ...]:
        return tuple(_shared(group) for group in self._groups)

    @cached_property
    def _digits(self) -> int:
        return max(5, len(str(len(self) - 1)))

    @cached_property
    def _odds(self) -> Odds:
        return Odds.of(self._groups)

    @cached_property
    def _availability(self) -> Availability:
        return Availability(self.draws.windows)


_Shared = tuple[DeviceProfile, Memory | None, Speed | None, Bandwidth | None]


def _shared(group: Group) -> _Shared:
    """A device at the group's medians, and what of it all devices of the group have in common."""
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
