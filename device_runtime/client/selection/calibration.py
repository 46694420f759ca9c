"""What a device knows of itself with a bundle: measured once, corrected by each round, kept over restarts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from device_runtime.client.training.work import FADE, WorkOutcome, corrected
from device_runtime.profiles import DeviceProfile, Speed

log = logging.getLogger(__name__)

PATIENCE = 3
"""Rounds in a row that a device sits out for want of time; then it measures its speed anew."""
LOAD_LEAST, LOAD_SHARE = 0.5, 0.5
"""A load that differs by more than this, and than this share of the larger one, has changed much."""
OUTGROWN, MOST = 1.25, 4.0
"""By how much more a kind is taken to hold after it was given up for want of memory; and at most."""


@dataclass(frozen=True)
class Corrections:
    """Its speed, and how far predictions were off; see DeviceProfile.

    `load` of the machine when the speed was measured (`profiles.measure.load`), None where that is not known;
    `sat_out` rounds in a row since then for want of time. A round that is extended counts once more.
    """

    speed: Speed
    corrections: Mapping[str, float] = field(default_factory=dict)
    growth: Mapping[str, float] = field(default_factory=dict)
    load: float | None = None
    sat_out: int = 0

    def after(self, profile: DeviceProfile, outcome: WorkOutcome) -> Corrections:
        """What is known after a round that began with this profile."""
        return replace(
            self,
            corrections=corrected(profile, outcome),
            growth=grown(profile, outcome),
            sat_out=self.sat_out + 1 if short_of_time(profile, outcome) else 0,
        )

    def doubted(self, load: float | None) -> str:
        """Why a device that sat out measures anew at this load of its machine (None: not known); empty while
        it need not.

        What was slow for a moment would else keep it out for good: what is not tried is not corrected.
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
    """What was learnt, in one JSON file, by bundle hash and device. A damaged file is measured anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Corrections] = {}
        if path.exists():
            try:
                self._known = msgspec.json.decode(path.read_bytes(), type=dict[str, Corrections])
            except msgspec.MsgspecError as error:
                log.warning("%s is not readable (%s): measuring anew", path, error)

    def get(self, key: str, measured: Callable[[], Corrections]) -> Corrections:
        """What is kept under this key, or what `measured` returns, which is then kept."""
        if key not in self._known:
            self.put(key, measured())
        return self._known[key]

    def put(self, key: str, learnt: Corrections) -> None:
        """Keep it. A disk that refuses is warned of: it is still known until the process ends."""
        self._known[key] = learnt
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self._known)))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("what was measured cannot be kept: %s", error)


def short_of_time(profile: DeviceProfile, outcome: WorkOutcome) -> bool:
    """Whether a device that sat out lacked time to compute: a faster one of its memory would have taken part.

    It may have tried and been too slow, or have known before.
    """
    if outcome.contribution is not None:
        return False
    costs = [candidate.cost for candidate in outcome.plan.candidates if candidate.cost is not None]
    limit = profile.memory.limit_bytes
    computes = (cost.compute_s >= cost.seconds / 2 for cost in costs if cost.peak_memory_bytes <= limit)
    return bool(outcome.timings) or any(computes)


def grown(profile: DeviceProfile, outcome: WorkOutcome) -> Mapping[str, float]:
    """The profile's growth after this round: bytes that an update added to the process, over those predicted.

    Where they were more, that holds at once, and `FADE` of the excess is forgotten in each round. Of a kind
    that was given up for want of memory it is not known: `OUTGROWN` times what was thought. Nothing is learnt
    of a kind that was done after one that was given up, for the peak may be of either.
    """
    known = profile.growth
    growth = {kind: 1 + (1 - FADE) * (old - 1) for kind, old in known.items()}
    seen = {kind: OUTGROWN * known.get(kind, 1.0) for kind in outcome.outgrew}
    chosen, idle = outcome.plan.chosen, profile.memory.resident_bytes
    if chosen is not None and chosen.cost is not None and outcome.contribution and not outcome.gave_up:
        added = (outcome.peak_memory_bytes - idle) / (chosen.cost.peak_memory_bytes - idle)
        seen[chosen.kind] = added * known.get(chosen.kind, 1.0)
    for kind, factor in seen.items():
        growth[kind] = min(MOST, max(1.0, factor, growth.get(kind, 1.0)))
    return {kind: factor for kind, factor in growth.items() if factor > 1}
