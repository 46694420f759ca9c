"""Emulates another device: its profile, clock and sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from device_runtime.profiles import Bandwidth, DeviceProfile, shipped


@dataclass(frozen=True)
class Time:
    """A clock and a sleep, both in seconds."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Emulation:
    """The device to emulate: its profile, and how much slower it is (a busy or hot board, a heavier task).

    With a `time` of its own it is virtual, one of many in a simulation: its work takes the time of the
    profile, however long it takes here, its memory is judged by prediction, and its link is simulated too.
    """

    profile: DeviceProfile
    slow: float = 1.0
    time: Time | None = None

    @classmethod
    def of(cls, name: str, slow: float = 1.0, uplink: float | None = None) -> Emulation:
        """A shipped profile by name, with changes; `uplink` in bytes per second. Raises ProfileError."""
        profile = shipped(name)
        speed = replace(profile.speed, flops_per_s=profile.speed.flops_per_s / slow)
        bandwidth = profile.bandwidth if uplink is None else Bandwidth(uplink, profile.bandwidth.down, "set")
        return cls(replace(profile, speed=speed, bandwidth=bandwidth), slow)

    def transfer(self, up: int = 0, down: int = 0) -> None:
        """Sleep for as long as these bytes take on the emulated link."""
        if self.time is None:
            link = self.profile.bandwidth
            time.sleep(up / link.up + down / link.down)
