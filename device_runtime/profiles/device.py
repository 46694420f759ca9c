"""What is known of one device, as frozen dataclasses. Bytes, seconds, watts, degrees Celsius."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Memory:
    """`limit_bytes`: what this process may reach at its peak; `resident_bytes`: what it holds while idle."""

    total_bytes: int
    limit_bytes: int
    resident_bytes: int = 0


@dataclass(frozen=True)
class Speed:
    """How fast a bundle's graphs run here.

    `seconds` is per sample, by graph name, as measured on this bundle; a graph that was not measured is
    predicted from its FLOPs at `flops_per_s`. `opening`: seconds until a graph can be run, by its name.
    `step_s`: of one step of a linear classifier alone, beside its operations. `held_bytes`: what a graph with
    a whole run in it holds, by its name. `run_bytes`: what a run may hold beside the weights, as GraphWork
    counts; 0 where nothing limits it further.
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
    """Bytes per second, as the device sees them."""

    up: float
    down: float
    source: str = "assumed"


@dataclass(frozen=True)
class Power:
    """Watts of the whole device. Energy from these figures is *modelled*, never measured.

    `uncertainty`: the fraction by which such energy may be off.
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
    """One device. `corrections` is measured over predicted seconds of earlier rounds, by kind of update.

    `growth` is the same of the bytes that an update adds to the process, where they were more: 1 or above.
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
