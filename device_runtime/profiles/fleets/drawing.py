"""Drawing a fleet's devices: who is of which group, and in what each differs from its profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from device_runtime.profiles.shipped import shipped

from .availability import DAY, joined
from .groups import Group

_ORDER, _SPEED, _LINK, _MEMORY, _CHARGE, _ZONE, _WINDOWS = range(7)
"""A stream of its own for each property, so that setting one spread changes no other draw."""


@dataclass(frozen=True, eq=False)
class Draws:
    """n devices, one entry each. `speed` and `link` multiply the group's median rates (float64), `memory` is
    the limit in bytes (int64), `charge` the battery's level at the start, 0 to 1 (float64, nan: no battery),
    `group` an index (int16); `windows` as in `Availability`.
    """

    group: NDArray[np.int16]
    speed: NDArray[np.float64]
    link: NDArray[np.float64]
    memory: NDArray[np.int64]
    charge: NDArray[np.float64]
    windows: NDArray[np.int32]


def counts(shares: Sequence[float], devices: int) -> list[int]:
    """How many devices each share gets: largest remainders, ties to the first of them."""
    exact = [share / sum(shares) * devices for share in shares]
    whole = [floor(count + 1e-9) for count in exact]
    by_remainder = sorted(range(len(shares)), key=lambda k: (-round(exact[k] - whole[k], 9), k))
    for k in by_remainder[: devices - sum(whole)]:
        whole[k] += 1
    return whole


def draw(groups: Sequence[Group], devices: int, seed: int, begins_h: float) -> Draws:
    """The same for the same arguments. Groups are mixed: the order of devices is drawn too."""
    sizes = counts([group.share for group in groups], devices)
    group = np.repeat(np.arange(len(groups), dtype=np.int16), sizes)
    group = _stream(seed, _ORDER).permutation(group)

    def spread(purpose: int, sigmas: Sequence[float]) -> NDArray[np.float64]:
        normal = _stream(seed, purpose).standard_normal(devices)
        return np.asarray(np.exp(np.array(sigmas)[group] * normal))

    return Draws(
        group=group,
        speed=np.array([g.speed.factor for g in groups])[group]
        * spread(_SPEED, [g.speed.sigma for g in groups]),
        link=spread(_LINK, [g.link.sigma for g in groups]),
        memory=_memory(groups, group, spread(_MEMORY, [g.memory.sigma for g in groups])),
        charge=_charge(groups, group, _stream(seed, _CHARGE).uniform(-1, 1, devices)),
        windows=_windows(groups, group, seed, begins_h),
    )


def _memory(
    groups: Sequence[Group], group: NDArray[np.int16], spread: NDArray[np.float64]
) -> NDArray[np.int64]:
    profiles = [shipped(g.profile).memory for g in groups]
    limits = [
        own.limit_bytes if g.memory.limit_mb is None else g.memory.limit_mb * 2**20
        for g, own in zip(groups, profiles, strict=True)
    ]
    totals = np.array([own.total_bytes for own in profiles], np.float64)[group]
    return np.minimum(np.array(limits, np.float64)[group] * spread, totals).astype(np.int64)


def _charge(
    groups: Sequence[Group], group: NDArray[np.int16], even: NDArray[np.float64]
) -> NDArray[np.float64]:
    cells = [g.battery for g in groups]
    start = np.array([cell.start if cell else np.nan for cell in cells])[group]
    width = np.array([cell.start_spread if cell else 0.0 for cell in cells])[group]
    return (start + width * even).clip(0, 1)


def _windows(
    groups: Sequence[Group], group: NDArray[np.int16], seed: int, begins_h: float
) -> NDArray[np.int32]:
    """Start and length of each device's windows, on the run's clock, which begins at `begins_h`."""
    n = len(group)
    zones = _stream(seed, _ZONE).random(n)
    rng = _stream(seed, _WINDOWS)
    normal, even = rng.standard_normal((n, 2, 2)), rng.random((n, 2))
    result = np.tile(np.array([0, DAY, 0, 0], np.int32), (n, 1))
    for number, one in enumerate(groups):
        if not one.windows:
            continue
        mine = np.flatnonzero(group == number)
        shape = (len(mine), len(one.windows))
        starts, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        for k, window in enumerate(one.windows):
            hour = window.start_h + window.start_sd_h * normal[mine, k, 0] + one.zones_h * zones[mine]
            hours = window.length_h * np.exp(window.length_sigma * normal[mine, k, 1])
            starts[:, k] = np.rint((hour - begins_h) * 3600)
            lengths[:, k] = np.rint(hours.clip(0, 24) * 3600) * (even[mine, k] < window.share)
        result[mine] = joined(starts, lengths)
    return result


def _stream(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, purpose])
