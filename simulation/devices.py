"""The fleet as it stands at one moment: what each device holds, has learnt, and has left in its battery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from device_runtime.work import corrected
from models.manifest import Manifest
from profiles import DeviceProfile, Workload
from profiles.fleets import Chances, Fleet
from strategies.workload import workload

from .clients import Clients
from .timeline import Asked, Luck, Timeline, timeline


@dataclass
class Known:
    """Of one device that was asked before: when it is free, its corrections, its battery in joule at a time.

    `checkpoint` and `steps` say which base it holds.
    """

    free_s: float = 0.0
    corrections: Mapping[str, float] = field(default_factory=dict)
    charge_j: float = 0.0
    charged_s: float = 0.0
    checkpoint: int = -1
    steps: int = 0


class Devices:
    """All devices of a run; only those that were asked take more memory than their samples' numbers."""

    def __init__(self, fleet: Fleet, clients: Clients, manifest: Manifest, slow: float = 1.0) -> None:
        """`slow` makes every device so many times slower: a small task then weighs like a large one."""
        self.fleet = fleet
        self._counts = clients.class_counts(len(manifest.labels))
        self._load = replace(workload(manifest, ()), download_bytes=0)
        self._slow = slow
        self._known: dict[int, Known] = {}

    def __len__(self) -> int:
        return len(self.fleet)

    def names(self) -> list[str]:
        return [self.fleet.name(device) for device in range(len(self.fleet))]

    def known(self, device: int) -> Known:
        """What is known of it; noted from now on."""
        if device not in self._known:
            battery = self.fleet.battery(device)
            charge = 0.0 if battery is None else battery.start * battery.capacity_j
            self._known[device] = Known(charge_j=charge)
        return self._known[device]

    def ready(self, device: int, now: float) -> bool:
        """Whether it can be asked: available, not at work, with enough in its battery."""
        if not self.fleet.available(device, now):
            return False
        known = self._known.get(device)
        if known is not None and known.free_s > now:
            return False
        battery = self.fleet.battery(device)
        return battery is None or self._charge(device, now) >= battery.minimum * battery.capacity_j

    def chances(self, devices: NDArray[np.int64], rng: np.random.Generator) -> list[Luck]:
        """What is drawn for these devices in one round."""
        drawn: Chances = self.fleet.chances(devices, rng)
        columns = (drawn.slowdown, drawn.uplink, drawn.downlink, drawn.crash, drawn.drop, drawn.away_s)
        return [Luck(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def ask(self, device: int, asked: Asked) -> Timeline:
        """What it does; it is busy until then, has learnt from it, and has spent its battery on it."""
        known, profile = self.known(device), self.profile(device)
        if known.corrections:
            profile = replace(profile, corrections=known.corrections)
        line = timeline(profile, self.workload(device), asked)
        known.free_s = line.back_s
        if line.outcome.timings:
            known.corrections = corrected(profile, line.outcome)
        if self.fleet.battery(device) is not None:
            known.charge_j, known.charged_s = self._charge(device, asked.now), asked.now
            known.charge_j = max(0.0, known.charge_j - line.energy_j)
        return line

    def profile(self, device: int) -> DeviceProfile:
        profile = self.fleet.profile(device)
        if self._slow == 1.0:
            return profile
        return replace(
            profile, speed=replace(profile.speed, flops_per_s=profile.speed.flops_per_s / self._slow)
        )

    def workload(self, device: int) -> Workload:
        return replace(self._load, class_counts=tuple(self._counts[device].tolist()))

    def _charge(self, device: int, now: float) -> float:
        """Joule in its battery, which charges while the device is there."""
        battery = self.fleet.battery(device)
        if battery is None:
            return 0.0
        known = self.known(device)
        at, there_s = known.charged_s, 0.0
        while at < now and known.charge_j + battery.charge_w * there_s < battery.capacity_j:
            left = min(now, self.fleet.until(device, at))
            there_s += left - at
            at = self.fleet.next(device, left)
        return min(battery.capacity_j, known.charge_j + battery.charge_w * there_s)
