"""The profile of a device: memory, speed, bandwidth, power, battery.

Units are bytes, seconds, watts and degrees Celsius.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
