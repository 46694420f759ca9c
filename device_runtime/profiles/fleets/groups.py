"""Settings of one group of a fleet: when its devices are available, their random slowdowns and failures.

Windows of availability begin and end on whole seconds, so that the answers are exact: a device is not
available at its `until` and is available at its `next`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, isfinite

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.profiles.device import ProfileError, shipped
from device_runtime.tags import check_tags

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")


class SpeedSpread(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Spread of compute speed within a group.

    The median is `factor` times the profile's speed, log-normal with `sigma` from device to device. From
    round to round the time of the same work varies log-normally with `jitter`, median 1.
    """

    factor: float = 1.0
    sigma: float = 0.0
    jitter: float = 0.0

    def check(self, where: str) -> None:
        _within(f"{where}.factor", self.factor, 0, inf, above=True)
        _within(f"{where}.sigma", self.sigma, 0, 3)
        _within(f"{where}.jitter", self.jitter, 0, 3)


class LinkSpread(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Spread of bandwidth within a group.

    Medians are in bytes per second (None: the profile's), log-normal with `sigma` from device to device and
    with `jitter` from round to round; `latency_s` is added to each transfer.
    """

    up_bytes_per_s: float | None = None
    down_bytes_per_s: float | None = None
    sigma: float = 0.0
    jitter: float = 0.0
    latency_s: float = 0.0

    def check(self, where: str) -> None:
        for name in ("up_bytes_per_s", "down_bytes_per_s"):
            rate = getattr(self, name)
            if rate is not None:
                _within(f"{where}.{name}", rate, 0, inf, above=True)
        _within(f"{where}.sigma", self.sigma, 0, 3)
        _within(f"{where}.jitter", self.jitter, 0, 3)
        _within(f"{where}.latency_s", self.latency_s, 0, inf)


class MemoryLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Spread of the memory limit of training within a group.

    The median is `limit_mb` in MiB (None: the profile's), log-normal with `sigma`; never more than the device
    has.
    """

    limit_mb: int | None = None
    sigma: float = 0.0

    def check(self, where: str, profile: str) -> None:
        _within(f"{where}.sigma", self.sigma, 0, 3)
        if self.limit_mb is not None:
            _within(f"{where}.limit_mb", self.limit_mb, 1, shipped(profile).memory.total_bytes / 2**20)


class AvailabilityWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A daily window in which devices of a group are available.

    It starts at about `start_h` of the device's local time (normal, standard deviation `start_sd_h`) and
    lasts about `length_h` hours (log-normal with `length_sigma`, a day at most). `share` is the fraction of
    the group's devices that have this window.
    """

    start_h: float
    length_h: float
    start_sd_h: float = 0.0
    length_sigma: float = 0.0
    share: float = 1.0

    def check(self, where: str) -> None:
        _within(f"{where}.start_h", self.start_h, 0, 24)
        _within(f"{where}.length_h", self.length_h, 0, 24, above=True)
        _within(f"{where}.start_sd_h", self.start_sd_h, 0, 12)
        _within(f"{where}.length_sigma", self.length_sigma, 0, 3)
        _within(f"{where}.share", self.share, 0, 1)


class Failures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Probabilities, each time a device is asked, that its process dies (`crash`) or its link fails (`drop`).

    The device is then away for about `away_s` seconds (log-normal with `away_sigma`).
    """

    crash: float = 0.0
    drop: float = 0.0
    away_s: float = 600.0
    away_sigma: float = 0.0

    def check(self, where: str) -> None:
        _within(f"{where}.crash", self.crash, 0, 1)
        _within(f"{where}.drop", self.drop, 0, 1)
        _within(f"{where}.away_s", self.away_s, 0, inf)
        _within(f"{where}.away_sigma", self.away_sigma, 0, 3)


class BatteryPack(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A battery of `wh` watt-hours, which charges at `charge_w` watts while the device is available.

    When the run begins its level is `start`, give or take `start_spread` (uniform), as fractions of the
    capacity. Below `minimum` the device takes no part.
    """

    wh: float
    charge_w: float = 0.0
    start: float = 1.0
    start_spread: float = 0.0
    minimum: float = 0.0

    def check(self, where: str) -> None:
        _within(f"{where}.wh", self.wh, 0, inf, above=True)
        _within(f"{where}.charge_w", self.charge_w, 0, inf)
        for name in ("start", "start_spread", "minimum"):
            _within(f"{where}.{name}", getattr(self, name), 0, 1)


class FleetGroup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of devices with one shipped `profile`: their share of the fleet, and how they differ.

    Without windows they are always available. Their local times lag the fleet's by 0 to `zones_h` hours,
    evenly spread. `members` names the models of the task's family that they train where a kind of update
    trains one of the family; () leaves the choice to each device. `tags` say what they are, for tasks that
    select by them.
    """

    profile: str
    share: float
    speed: SpeedSpread = SpeedSpread()
    link: LinkSpread = LinkSpread()
    memory: MemoryLimit = MemoryLimit()
    windows: tuple[AvailabilityWindow, ...] = ()
    zones_h: float = 0.0
    failures: Failures = Failures()
    battery: BatteryPack | None = None
    members: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def check(self, name: str) -> None:
        """Raises ProfileError for invalid settings; it names the group, the field and the expected values."""
        where = f"groups.{name}"
        if not _NAME.fullmatch(name):
            raise ProfileError(f"group name {name!r}: use 1 to 48 letters, digits, '.', '_' or '-'")
        try:
            shipped(self.profile)
        except ProfileError as error:
            raise ProfileError(f"{where}.profile: {error}") from None
        _within(f"{where}.share", self.share, 0, 1, above=True)
        _within(f"{where}.zones_h", self.zones_h, 0, 24)
        try:
            check_tags(self.tags)
        except ValueError as error:
            raise ProfileError(f"{where}.tags: {error}") from None
        if len(self.windows) > 2:
            raise ProfileError(f"{where}.windows are {len(self.windows)}, expected 2 or fewer")
        for number, window in enumerate(self.windows):
            window.check(f"{where}.windows[{number}]")
        self.speed.check(f"{where}.speed")
        self.link.check(f"{where}.link")
        self.memory.check(f"{where}.memory", self.profile)
        self.failures.check(f"{where}.failures")
        if self.battery is not None:
            self.battery.check(f"{where}.battery")


def _within(where: str, value: float, least: float, most: float, *, above: bool = False) -> None:
    if isfinite(value) and least <= value <= most and not (above and value == least):
        return
    low = f"above {least:g}" if above else f"{least:g} or more"
    high = "" if most == inf else f", {most:g} at most"
    raise ProfileError(f"{where} is {value}, expected a number {low}{high}")


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Disturbances:
    """Slowdowns and failures of k asked devices in one round, each float64 (k,).

    slowdown: actual over predicted compute seconds (a busy processor).
    uplink, downlink: factors on the bandwidth.
    crash: the share of the work, in (0, 1), after which the process dies; nan: it does not.
    drop: the share of the work, in (0, 1), after which the link is lost; nan: it is not.
    away_s: seconds until a crashed or dropped device is back.
    """

    slowdown: Floats
    uplink: Floats
    downlink: Floats
    crash: Floats
    drop: Floats
    away_s: Floats


@dataclass(frozen=True, eq=False)
class DisturbanceRates:
    """Parameters of the draws of `Disturbances` by group: float64 (6, groups).

    Rows: speed jitter, link jitter, away_sigma, away_s, crash, drop.
    """

    table: Floats

    @classmethod
    def of(cls, groups: Sequence[FleetGroup]) -> DisturbanceRates:
        rows = [(g.speed.jitter, g.link.jitter, g.failures.away_sigma) for g in groups]
        chances = [(g.failures.away_s, g.failures.crash, g.failures.drop) for g in groups]
        table = np.concatenate([np.array(rows, np.float64), np.array(chances, np.float64)], axis=1)
        return cls(table.T.copy())

    def draw(self, groups: NDArray[np.integer], rng: np.random.Generator) -> Disturbances:
        """Draws for k devices of these groups (k,). Always takes 8 * k numbers from `rng`."""
        load, link, away_sigma, away_s, crash, drop = self.table[:, groups]
        normal = rng.standard_normal((4, len(groups)))
        even = rng.random((4, len(groups)))
        share = np.maximum(even[2:], 2.0**-53)
        return Disturbances(
            slowdown=np.exp(load * normal[0]),
            uplink=np.exp(link * normal[1]),
            downlink=np.exp(link * normal[2]),
            crash=np.where(even[0] < crash, share[0], np.nan),
            drop=np.where(even[1] < drop, share[1], np.nan),
            away_s=away_s * np.exp(away_sigma * normal[3]),
        )


DAY = 86_400
"""Seconds."""


@dataclass(frozen=True, eq=False)
class Availability:
    """Daily windows of n devices, on the run's clock; `t` is in seconds since the run began.

    `windows` is int32 (n, 4), as `normalised_windows` makes it: start and length of the first window, then of
    the second, in seconds. A device with a length of 86,400 is always available, one with two lengths of 0
    never.
    """

    windows: NDArray[np.int32]

    def available(self, i: int, t: float) -> bool:
        start, length, again, more = self.windows[i].tolist()
        now = floor(t)
        return bool((now - start) % DAY < length or (now - again) % DAY < more)

    def until(self, i: int, t: float) -> float:
        """The time at which device i leaves again: inf for never, `t` if it is not available now."""
        start, length, again, more = self.windows[i].tolist()
        if length == DAY:
            return inf
        now = floor(t)
        since = (now - start) % DAY
        if since < length:
            return float(now - since + length)
        since = (now - again) % DAY
        return float(now - since + more) if since < more else t

    def next(self, i: int, t: float) -> float:
        """The next time at which device i is available: `t` if it is now, inf for never."""
        if self.available(i, t):
            return t
        start, length, again, more = self.windows[i].tolist()
        if not length:
            return inf
        now = ceil(t)
        wait = (start - now) % DAY
        return float(now + (min(wait, (again - now) % DAY) if more else wait))

    def present(self, t: float) -> NDArray[np.bool_]:
        """Which of the n devices are available, bool (n,)."""
        since = (floor(t) - self.windows[:, 0::2]) % DAY
        return np.asarray((since < self.windows[:, 1::2]).any(axis=1))


def normalised_windows(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Normalises one or two windows of each device into the form of `Availability.windows`.

    `starts` and `lengths` are seconds, (n, 1) or (n, 2). Windows that overlap or touch become one; an empty
    window comes after one that is not empty.
    """
    if starts.shape[1] == 1:
        starts, lengths = np.repeat(starts, 2, axis=1), np.pad(lengths, ((0, 0), (0, 1)))
    first, second = starts.T % DAY
    first_length, second_length = lengths.T.clip(0, DAY)
    ahead, behind = (second - first) % DAY, (first - second) % DAY
    both = (first_length > 0) & (second_length > 0)
    reached = both & (ahead <= first_length)
    reaching = both & ~reached & (behind <= second_length)
    swapped = reaching | (first_length == 0)
    result = np.stack([first, first_length, second, second_length], axis=1)
    result[swapped] = np.stack([second, second_length, first, first_length], axis=1)[swapped]
    result[reached, 1] = np.maximum(first_length, ahead + second_length)[reached]
    result[reaching, 1] = np.maximum(second_length, behind + first_length)[reaching]
    result[reached | reaching, 3] = 0
    result[:, 1] = result[:, 1].clip(0, DAY)
    return result.astype(np.int32)
