"""Deadlines in full updates: a round is so many times as long as one takes on a typical fast device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, log10
from statistics import mean

import msgspec
import numpy as np

from device_runtime.models.bundles import bundle as bundles
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.profiles import DeviceProfile, FleetSpec, shipped
from device_runtime.simulation import data as data_sets
from device_runtime.simulation.data import DataSpec
from device_runtime.simulation.errors import ScenarioError
from device_runtime.strategies import registry
from device_runtime.strategies.kind import Settings
from device_runtime.strategies.training.workload import workload

from .layers import Deadline

A_DAY_S = 86_400.0


@dataclass(frozen=True)
class FullUpdate:
    """What a full update is in a setting."""

    bundle: str
    data: DataSpec
    devices: int
    settings: Settings


def deadline_s(wanted: Deadline, fleet: FleetSpec, slow: float, update: FullUpdate) -> float:
    """Seconds of a round, to two digits: as `Deadline` says, by the median device of its group.

    Raises ScenarioError, DataSetError, ModelError.
    """
    if not wanted.full:
        return A_DAY_S
    group = fleet.groups.get(wanted.group)
    if group is None:
        there = ", ".join(fleet.groups)
        raise ScenarioError(f"fleet {fleet.name} has no group {wanted.group}; it has {there}")
    shipped_as = shipped(group.profile)
    rate = shipped_as.speed.flops_per_s * group.speed.factor / slow
    profile = replace(shipped_as, speed=replace(shipped_as.speed, flops_per_s=rate))
    return _rounded(wanted.full * _takes_s(update, profile))


def _takes_s(update: FullUpdate, profile: DeviceProfile) -> float:
    """Of a device with as many samples as devices have on average, whatever groups of them hold."""
    data = data_sets.load(update.data, 0)
    divided = msgspec.structs.replace(update.data, groups={})
    parts = data_sets.divide(data, divided, update.devices, 0)
    samples = round(mean(len(part) for part in parts))
    manifest = Bundle.open(bundles.find(update.bundle)).manifest
    counts = np.bincount(np.arange(samples) % len(data.labels), minlength=len(manifest.labels))
    load = workload(manifest, tuple(counts.tolist()))
    return registry.make("full", update.settings).cost(load, profile).seconds


def _rounded(value: float) -> float:
    return round(value, 1 - floor(log10(value)))
