"""The drawn properties of a fleet's devices, each drawn for all of them when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import floor

import numpy as np
from numpy.typing import NDArray

from device_runtime.profiles.device import shipped

from .groups import DAY, FleetGroup, normalised_windows

_ORDER, _SPEED, _LINK, _MEMORY, _CHARGE, _ZONE, _WINDOWS = range(7)
"""Each property is drawn from its own random stream, so that setting one spread changes no other draw."""

BLOCK = 2**20
"""Devices whose properties are drawn at a time, so that drawing takes little memory besides the result."""


def counts(shares: Sequence[float], devices: int) -> list[int]:
    """Number of devices for each share, by largest remainders; of equal remainders the first wins."""
    exact = [share / sum(shares) * devices for share in shares]
    whole = [floor(count + 1e-9) for count in exact]
    by_remainder = sorted(range(len(shares)), key=lambda k: (-round(exact[k] - whole[k], 9), k))
    for k in by_remainder[: devices - sum(whole)]:
        whole[k] += 1
    return whole


@dataclass(frozen=True, eq=False)
class Draws:
    """The drawn properties of n devices; the same arguments give the same devices.

    A property is drawn for all devices when it is first asked for. One that no group varies takes neither
    time nor memory, unless it is asked for.
    """

    groups: Sequence[FleetGroup]
    devices: int
    seed: int
    begins_h: float

    @cached_property
    def group(self) -> NDArray[np.int16]:
        """The group's index, (n,). The order of devices is drawn too, so that groups are mixed."""
        if len(self.groups) == 1:
            return np.zeros(self.devices, np.int16)
        sizes = counts([group.share for group in self.groups], self.devices)
        group = np.repeat(np.arange(len(self.groups), dtype=np.int16), sizes)
        return _stream(self.seed, _ORDER).permutation(group)

    @cached_property
    def speed(self) -> NDArray[np.float64]:
        """Factors on the profile's speed, (n,)."""
        factors = np.array([g.speed.factor for g in self.groups])
        spread = self._spread(_SPEED, [g.speed.sigma for g in self.groups])
        for block in self._blocks():
            spread[block] *= factors[self.group[block]]
        return spread

    @cached_property
    def link(self) -> NDArray[np.float64]:
        """Factors on the group's median bandwidths, (n,)."""
        return self._spread(_LINK, [g.link.sigma for g in self.groups])

    @cached_property
    def memory(self) -> NDArray[np.int64]:
        """The limit of training's memory in bytes, (n,)."""
        profiles = [shipped(g.profile).memory for g in self.groups]
        limits = np.array(
            [
                own.limit_bytes if g.memory.limit_mb is None else g.memory.limit_mb * 2**20
                for g, own in zip(self.groups, profiles, strict=True)
            ],
            np.float64,
        )
        totals = np.array([own.total_bytes for own in profiles], np.float64)
        spread = self._spread(_MEMORY, [g.memory.sigma for g in self.groups])
        memory = np.empty(self.devices, np.int64)
        for block in self._blocks():
            of = self.group[block]
            memory[block] = np.minimum(limits[of] * spread[block], totals[of])
        return memory

    @cached_property
    def charge(self) -> NDArray[np.float64]:
        """The battery's level at the start, 0 to 1, (n,); nan: no battery."""
        cells = [g.battery for g in self.groups]
        start = np.array([cell.start if cell else np.nan for cell in cells])
        width = np.array([cell.start_spread if cell else 0.0 for cell in cells])
        charge, rng = np.empty(self.devices), _stream(self.seed, _CHARGE)
        for block in self._blocks():
            of = self.group[block]
            charge[block] = (start[of] + width[of] * rng.uniform(-1, 1, len(of))).clip(0, 1)
        return charge

    @cached_property
    def windows(self) -> NDArray[np.int32]:
        """Start and length of each device's windows, (n, 4), as in `Availability`.

        They are on the run's clock, which begins at hour `begins_h`.
        """
        zones, normals, evens = (_stream(self.seed, purpose) for purpose in (_ZONE, _WINDOWS, _WINDOWS))
        for block in self._blocks():  # `evens` follow the normals in their stream
            evens.standard_normal((block.stop - block.start, 2, 2))
        windows = np.empty((self.devices, 4), np.int32)
        for block in self._blocks():
            n = block.stop - block.start
            drawn = zones.random(n), normals.standard_normal((n, 2, 2)), evens.random((n, 2))
            windows[block] = _windows(self.groups, self.group[block], drawn, self.begins_h)
        return windows

    def _spread(self, purpose: int, sigmas: Sequence[float]) -> NDArray[np.float64]:
        rng, by_group = _stream(self.seed, purpose), np.array(sigmas)
        spread = np.empty(self.devices)
        for block in self._blocks():
            of = self.group[block]
            spread[block] = np.exp(by_group[of] * rng.standard_normal(len(of)))
        return spread

    def _blocks(self) -> Iterator[slice]:
        for begin in range(0, self.devices, BLOCK):
            yield slice(begin, min(begin + BLOCK, self.devices))


def _windows(
    groups: Sequence[FleetGroup],
    group: NDArray[np.int16],
    drawn: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]],
    begins_h: float,
) -> NDArray[np.int32]:
    """The windows of k devices of these groups (k,). Drawn: zones (k,), normals (k, 2, 2), shares (k, 2)."""
    zones, normal, even = drawn
    result = np.tile(np.array([0, DAY, 0, 0], np.int32), (len(group), 1))
    for number, terms in enumerate(groups):
        if not terms.windows:
            continue
        members = np.flatnonzero(group == number)
        shape = (len(members), len(terms.windows))
        starts, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for k, window in enumerate(terms.windows):
            hour = window.start_h + window.start_sd_h * normal[members, k, 0] + terms.zones_h * zones[members]
            hours = window.length_h * np.exp(window.length_sigma * normal[members, k, 1])
            starts[:, k] = np.rint((hour - begins_h) * 3600)
            lengths[:, k] = np.rint(hours.clip(0, 24) * 3600) * (even[members, k] < window.share)
        result[members] = normalised_windows(starts, lengths)
    return result


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose])


def redrawn_order(devices: int, seed: int, number: int) -> NDArray[np.int64]:
    """The device whose figures each device has in round `number`, (n,), where they are redrawn."""
    return np.random.default_rng([seed, _ORDER, number]).permutation(devices)
