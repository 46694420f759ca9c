"""Profiles of devices: what a device has in memory, speed, bandwidth, power and battery.

Units are bytes, seconds, watts and degrees Celsius. The shipped profiles are in `boards.toml`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

import msgspec

from device_runtime.content import content, read_toml


@dataclass(frozen=True)
class Memory:
    """Memory of the device: in all, the most that this process may use, and what the process uses idle."""

    total_bytes: int
    limit_bytes: int
    resident_bytes: int = 0


@dataclass(frozen=True)
class Speed:
    """How fast a bundle's graphs run on the device; mappings are by graph name.

    seconds: measured on this bundle, per sample; a graph that was not measured is predicted from its FLOPs at
    `flops_per_s`.
    opening: seconds to open a graph before its first run.
    step_s: seconds of one step of a linear classifier alone, in addition to its operations.
    held_bytes: measured memory of an open graph with a full run in it.
    run_bytes: limit on a run's memory without the weights, counted as in GraphWork; 0 for no limit.
    """

    flops_per_s: float
    seconds: Mapping[str, float] = field(default_factory=dict)
    source: str = ""
    opening: Mapping[str, float] = field(default_factory=dict)
    step_s: float = 0.0
    held_bytes: Mapping[str, int] = field(default_factory=dict)
    run_bytes: int = 0

    def of(self, graph: str, flops: float) -> float:
        """Seconds for one sample through `graph`, which takes `flops` operations."""
        measured = self.seconds.get(graph)
        return flops / self.flops_per_s if measured is None else measured


@dataclass(frozen=True)
class Bandwidth:
    """Upload and download rate of the device, in bytes per second."""

    up: float
    down: float
    source: str = "assumed"


@dataclass(frozen=True)
class Power:
    """Watts of the whole device, idle and under load.

    Energy from these figures is *modelled*, never measured; `uncertainty` is the fraction by which it may be
    off.
    """

    idle_w: float
    load_w: float
    source: str = "assumed"
    uncertainty: float = 0.5


@dataclass(frozen=True)
class Battery:
    percent: float
    plugged: bool


@dataclass(frozen=True)
class DeviceProfile:
    """The profile of one device, and its calibration by earlier rounds, by kind of update.

    corrections: measured over predicted seconds.
    growth: measured over predicted bytes that an update adds to the process, 1 or more.
    """

    name: str
    cores: int
    memory: Memory
    speed: Speed
    bandwidth: Bandwidth
    power: Power
    battery: Battery | None = None
    temperature_c: float | None = None
    engine: str = ""
    corrections: Mapping[str, float] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)


MOBILENET_V2_FLOPS = 0.6e9
"""Two FLOPs for each of MobileNetV2's 300 million multiply-adds at 224 px (Sandler et al. 2018, table 4)."""

RESNET_18_FLOPS = 3.6e9
"""Two FLOPs for each of ResNet-18's 1.8 billion multiply-adds at 224 px (He et al. 2016, table 1)."""


RESIDENT_BYTES = 82_000_000
"""Memory of a device process that is idle after joining (measured: benchmarks/footprint.py)."""


class ProfileError(Exception):
    """Raised for a profile or a fleet that does not exist or is not valid."""


class Board(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of `boards.toml`; the head of that file explains the figures."""

    title: str
    cores: int
    memory_mb: int
    available_mb: int
    memory_source: str
    mobilenet_v2_ms: float
    resnet18_ms: float
    speed_source: str
    idle_w: float
    load_w: float
    power_source: str
    up_bytes_per_s: float
    down_bytes_per_s: float
    link_source: str

    @property
    def flops_per_s(self) -> float:
        """The rate with MobileNetV2: on every board the lower of the two, since its layers are thin."""
        return MOBILENET_V2_FLOPS / (self.mobilenet_v2_ms / 1000)

    @property
    def wide_flops_per_s(self) -> float:
        """The rate with ResNet-18, that of networks with wide layers."""
        return RESNET_18_FLOPS / (self.resnet18_ms / 1000)

    def profile(self, name: str) -> DeviceProfile:
        return DeviceProfile(
            name=name,
            cores=self.cores,
            memory=Memory(self.memory_mb * 2**20, self.available_mb * 2**20, RESIDENT_BYTES),
            speed=Speed(self.flops_per_s, source=self.speed_source),
            bandwidth=Bandwidth(self.up_bytes_per_s, self.down_bytes_per_s, "shipped profile, assumed"),
            power=Power(self.idle_w, self.load_w, self.power_source),
        )


@cache
def boards() -> Mapping[str, Board]:
    """All boards by name, in the order of the file."""
    table = read_toml(content("profiles") / "boards.toml", ProfileError)
    return MappingProxyType(msgspec.convert(table, dict[str, Board]))


def shipped_names() -> tuple[str, ...]:
    return tuple(boards())


def shipped(name: str) -> DeviceProfile:
    """The shipped profile of this name. Raises ProfileError, which lists the known names."""
    try:
        return boards()[name].profile(name)
    except KeyError:
        raise ProfileError(f"no profile named {name!r}; there are {', '.join(shipped_names())}") from None


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
    def of(
        cls, name: str, slow: float = 1.0, uplink: float | None = None, downlink: float | None = None
    ) -> Emulation:
        """A shipped profile by name, with changes; the link in bytes per second. Raises ProfileError."""
        profile = shipped(name)
        speed = replace(profile.speed, flops_per_s=profile.speed.flops_per_s / slow)
        bandwidth = profile.bandwidth
        if uplink is not None or downlink is not None:
            bandwidth = Bandwidth(uplink or bandwidth.up, downlink or bandwidth.down, "set")
        return cls(replace(profile, speed=speed, bandwidth=bandwidth), slow)

    def transfer(self, up: int = 0, down: int = 0) -> None:
        """Sleep for as long as these bytes take on the emulated link."""
        if self.time is None:
            link = self.profile.bandwidth
            time.sleep(up / link.up + down / link.down)
