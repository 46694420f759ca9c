"""The state of a simulated fleet: what each device holds, has learnt, and has left in its battery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from device_runtime.device.selection.choose import MAIN, Loads
from device_runtime.device.training.work import corrected
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.profiles import DeviceProfile
from device_runtime.profiles.fleets.fleet import BatterySpec, Disturbances, Fleet
from device_runtime.simulation.data.loading import Clients
from device_runtime.simulation.history.bases import NO_BASES_HELD, HeldBases
from device_runtime.strategies.interface.kind import AnyStrategy
from device_runtime.strategies.terms.dp_sgd import PrivacyLedger
from device_runtime.strategies.training.workload import workload

from .timeline import AskConditions, RoundDraws, Timeline, timeline
from .virtual_worker import UNSPENT

NOTHING_LEARNT: Mapping[str, float] = {}
MOST_LOADS = 10_000
"""The class counts whose workloads are shared by the devices that have the same."""


@dataclass
class AskedDevice:
    """The state of a device: its corrections, and what it holds in addition to bundles.

    loads: the workload of the task on it with each model, before any base is fetched.
    charge_j: its battery's charge at `charged_s`, less the energy of the work that it was then given.
    ledger: the privacy spent by its samples.
    like: the form of its latest contribution that the aggregator accepted and still knows.
    new: whether it was never asked; one with a battery has a state once its charge was looked at.
    """

    loads: Loads
    corrections: Mapping[str, float] = field(default_factory=lambda: NOTHING_LEARNT)
    charge_j: float = 0.0
    charged_s: float = 0.0
    bases: HeldBases = NO_BASES_HELD
    ledger: PrivacyLedger = UNSPENT
    like: AnyStrategy | None = None
    new: bool = True


class FleetState:
    """All devices of a run; those never asked take no memory here."""

    def __init__(
        self, fleet: Fleet, clients: Clients, manifests: Mapping[str, Manifest], slow: float = 1.0
    ) -> None:
        """`manifests` by member, the main model's by "".

        slow: the factor by which every device is slower, so that a small task costs as much as a large one.
        """
        self.fleet = self._now = fleet
        self._clients, self._labels = clients, len(manifests[MAIN].labels)
        loads = {member: workload(manifest, ()) for member, manifest in manifests.items()}
        alone = len(loads) == 1  # there is no choice of a model before its base is fetched
        self._loads = {m: replace(load, download_bytes=0) if alone else load for m, load in loads.items()}
        self._loads_of = lru_cache(MOST_LOADS)(self._with_counts)
        self._slow = slow
        self._states: dict[int, AskedDevice] = {}
        self._free_s: dict[int, float] = {}  # when those at work are done; others may be left in it

    def __len__(self) -> int:
        return len(self.fleet)

    def open(self, number: int) -> Fleet:
        """Opens a round: from now on devices have its figures, where the fleet is redrawn for every round."""
        self._now = self.fleet.in_round(number)
        return self._now

    def samples(self, device: int) -> int:
        """The number of samples of a device."""
        return self.known(device).loads[MAIN].samples

    def is_new(self, device: int) -> bool:
        """Whether the device was never asked before."""
        return device not in self._states or self._states[device].new

    def known(self, device: int) -> AskedDevice:
        """The state of the device, which is kept from now on."""
        if device not in self._states:
            battery = self.fleet.battery(device)
            charge = 0.0 if battery is None else battery.start * battery.capacity_j
            counts = self._clients.class_counts(device, self._labels)
            self._states[device] = AskedDevice(self._loads_of(counts), charge_j=charge)
        return self._states[device]

    def ready(self, device: int, now: float) -> bool:
        """Whether the device can be asked: available, not at work, with enough charge in its battery."""
        if not self.fleet.available(device, now):
            return False
        if self._free_s.get(device, 0.0) > now:
            return False
        battery = self.fleet.battery(device)
        if battery is None:
            return True
        charge_j = self._charge(device, battery, now)
        return charge_j > 0 and charge_j >= battery.minimum * battery.capacity_j

    def idle(self, now: float) -> NDArray[np.bool_]:
        """Which devices are not at work, bool (n,)."""
        self._free_s = {device: free_s for device, free_s in self._free_s.items() if free_s > now}
        idle = np.ones(len(self), bool)
        idle[list(self._free_s)] = False
        return idle

    def round_draws(self, devices: NDArray[np.int64], rng: np.random.Generator) -> list[RoundDraws]:
        """The random draws for these devices in one round."""
        drawn: Disturbances = self._now.disturbances(devices, rng)
        columns = (drawn.slowdown, drawn.uplink, drawn.downlink, drawn.crash, drawn.drop, drawn.away_s)
        return [RoundDraws(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def ask(self, device: int, conditions: AskConditions) -> Timeline:
        """Asks a device, returns what it does, and updates its state: busy time, corrections, battery.

        A device's corrections are not on its disk, so that a crash loses them.
        """
        state = self.known(device)
        state.new = False
        profile = self.profile(device, state.corrections)
        battery = self.fleet.battery(device)
        if battery is not None:
            state.charge_j, state.charged_s = self._charge(device, battery, conditions.now), conditions.now
            conditions = replace(conditions, charge_j=state.charge_j, charge_w=battery.charge_w)
        if state.ledger is not conditions.ledger or state.like is not conditions.like:
            conditions = replace(conditions, ledger=state.ledger, like=state.like)
        line = timeline(profile, state.loads, conditions)
        state.ledger, state.like = line.ledger, _known_of(state.like, line, conditions)
        self._free_s[device] = line.back_at
        if battery is not None:
            state.charge_j -= line.energy_j
        if line.fate == "crashed":
            state.corrections = NOTHING_LEARNT
        elif line.outcome.timings or state.corrections:
            state.corrections = corrected(profile, line.outcome)
        return line

    def profile(self, device: int, corrections: Mapping[str, float] = NOTHING_LEARNT) -> DeviceProfile:
        profile = self._now.profile(device, corrections)
        if self._slow == 1.0:
            return profile
        return replace(
            profile, speed=replace(profile.speed, flops_per_s=profile.speed.flops_per_s / self._slow)
        )

    def _with_counts(self, counts: tuple[int, ...]) -> Loads:
        """The workload with each model on a device of these class counts."""
        return {member: replace(load, class_counts=counts) for member, load in self._loads.items()}

    def _charge(self, device: int, battery: BatterySpec, now: float) -> float:
        """The joules in the device's battery, which charges while the device is available."""
        state = self.known(device)
        if not battery.charge_w:
            return state.charge_j
        missing_j, at, there_s = battery.capacity_j - state.charge_j, state.charged_s, 0.0
        while at < now and battery.charge_w * there_s < missing_j:
            left = min(now, self.fleet.until(device, at))
            there_s += left - at
            at = self.fleet.next(device, left)
        return min(battery.capacity_j, state.charge_j + battery.charge_w * there_s)


def _known_of(like: AnyStrategy | None, line: Timeline, conditions: AskConditions) -> AnyStrategy | None:
    """The form of the latest contribution that the aggregator accepted and still knows.

    None after a late contribution, and after a device was offline for a while and says hello again.
    """
    chosen = line.outcome.plan.chosen
    if line.gaps or line.ends_at > conditions.closes_at:
        return None
    return like if chosen is None else chosen.strategy
