"""Stores a device's measured speed and memory use, corrected after each round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.profiles import DeviceProfile, Speed

from .work import FADE, WorkOutcome, corrected

log = logging.getLogger(__name__)

PATIENCE = 3
"""Rounds in a row that a device sits out for lack of time before it measures its speed anew."""
LOAD_LEAST, LOAD_SHARE = 0.5, 0.5
"""A load has changed much if it differs by more than LOAD_LEAST, and by that share of the larger one."""
OUTGROWN, MOST = 1.25, 4.0
"""Growth assumed for a kind given up for lack of memory, times what was assumed; and the most assumed."""


@dataclass(frozen=True)
class Corrections:
    """A device's speed, and how far predictions were off; see DeviceProfile.

    `load` of the machine when the speed was measured (`load_per_core`), None if not known; `sat_out`:
    rounds in a row sat out since then for lack of time. A round that is extended counts once more.
    """

    speed: Speed
    corrections: Mapping[str, float] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)
    load: float | None = None
    sat_out: int = 0

    def after(self, profile: DeviceProfile, outcome: WorkOutcome) -> Corrections:
        """The corrections after a round that began with this profile."""
        return replace(
            self,
            corrections=corrected(profile, outcome),
            growth=grown(profile, outcome),
            sat_out=self.sat_out + 1 if short_of_time(profile, outcome) else 0,
        )

    def doubted(self, load: float | None) -> str:
        """Why a device that sat out must measure its speed anew; empty if it need not.

        `load` is the machine's now; None: not known. Otherwise a moment of slowness would keep the device out
        for good, as kinds that are not tried are not corrected.
        """
        if self.sat_out >= PATIENCE:
            return f"{self.sat_out} rounds in a row were sat out"
        if not self.sat_out or load is None:
            return ""
        if self.load is None:
            return "the load of the machine then is not known"
        if abs(load - self.load) > max(LOAD_LEAST, LOAD_SHARE * max(load, self.load)):
            return f"{load:.1f} processes want a core of the machine, and {self.load:.1f} did then"
        return ""


class Measurements:
    """Keeps corrections in one JSON file, by bundle hash and device. A damaged file is measured anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_key: dict[str, Corrections] = {}
        if path.exists():
            try:
                self._by_key = msgspec.json.decode(path.read_bytes(), type=dict[str, Corrections])
            except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
                log.warning("%s is not readable (%s): measuring anew", path, error)

    def get(self, key: str, measured: Callable[[], Corrections]) -> Corrections:
        """The corrections under this key, or what `measured` returns, which is then kept."""
        if key not in self._by_key:
            self.put(key, measured())
        return self._by_key[key]

    def put(self, key: str, corrections: Corrections) -> None:
        """Keep corrections. If the disk fails, they last until the process ends."""
        self._by_key[key] = corrections
        try:
            replace_file(self._path, msgspec.json.format(msgspec.json.encode(self._by_key)))
        except OSError as error:
            log.warning("what was measured cannot be kept: %s", error)


def short_of_time(profile: DeviceProfile, outcome: WorkOutcome) -> bool:
    """Whether a device sat out for lack of computing time: a faster one of its memory would have taken part.

    It may have tried and been too slow, or have known before.
    """
    if outcome.update is not None:
        return False
    costs = [candidate.cost for candidate in outcome.plan.candidates if candidate.cost is not None]
    limit = profile.memory.limit_bytes
    computes = (cost.compute_s >= cost.seconds / 2 for cost in costs if cost.peak_memory_bytes <= limit)
    return bool(outcome.timings) or any(computes)


def grown(profile: DeviceProfile, outcome: WorkOutcome) -> Mapping[str, float]:
    """The profile's growth after this round: bytes that an update added to the process, over those predicted.

    A larger value holds at once, and `FADE` of the excess is forgotten in each round. For a kind that was
    given up for lack of memory, the bytes are not known: `OUTGROWN` times what was assumed. A kind that was
    done after one that was given up teaches nothing, as the peak may be of either.
    """
    before = profile.growth
    growth = {kind: 1 + (1 - FADE) * (old - 1) for kind, old in before.items()}
    factors = {kind: OUTGROWN * before.get(kind, 1.0) for kind in outcome.out_of_memory_kinds}
    chosen, idle = outcome.plan.chosen, profile.memory.resident_bytes
    if chosen is not None and chosen.cost is not None and outcome.update and not outcome.gave_up:
        added = (outcome.peak_memory_bytes - idle) / (chosen.cost.peak_memory_bytes - idle)
        factors[chosen.kind] = added * before.get(chosen.kind, 1.0)
    for kind, factor in factors.items():
        growth[kind] = min(MOST, max(1.0, factor, growth.get(kind, 1.0)))
    return {kind: factor for kind, factor in growth.items() if factor > 1}
