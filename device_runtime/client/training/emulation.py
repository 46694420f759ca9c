"""The device that this process emulates, and its clock and sleep."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from device_runtime.profiles import Bandwidth, DeviceProfile, shipped


@dataclass(frozen=True)
class Time:
    """How time is told and spent, in seconds."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Pretence:
    """Another device to be: its profile, and how much slower still (a busy or hot board, a heavier task).

    With a `time` of its own it is virtual, one of many in a simulation: what it does takes the time that the
    profile says, whatever it takes here, and its memory is judged by prediction; its link is simulated too.
    """

    profile: DeviceProfile
    slow: float = 1.0
    time: Time | None = None

    @classmethod
    def of(cls, name: str, slow: float = 1.0, uplink: float | None = None) -> Pretence:
        """A shipped profile by name, changed; `uplink` in bytes per second. Raises ProfileError."""
        profile = shipped(name)
        speed = replace(profile.speed, flops_per_s=profile.speed.flops_per_s / slow)
        bandwidth = profile.bandwidth if uplink is None else Bandwidth(uplink, profile.bandwidth.down, "set")
        return cls(replace(profile, speed=speed, bandwidth=bandwidth), slow)

    def transfer(self, up: int = 0, down: int = 0) -> None:
        """Sleep for as long as these bytes take on its link."""
        if self.time is None:
            link = self.profile.bandwidth
            time.sleep(up / link.up + down / link.down)
