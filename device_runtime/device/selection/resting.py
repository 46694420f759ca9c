"""Decides whether a device rests in a round because the aggregator wants nothing that it would send.

A device that would send a full update takes part. One that would train the extractor less than that, or not
at all, takes part with the probability of the largest shortage among its classes, and at least with
LEAST_TRAINING or LEAST_STATISTICS, so that nobody is forgotten. Pure functions: the simulator and devices
draw alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from device_runtime.broker.wire.messages import RESTS, Shortages
from device_runtime.models.bundles.weights import generator_of
from device_runtime.profiles import Workload
from device_runtime.strategies.statistics import kind_statistics

from .choose import Candidate, UpdateChoice

LEAST_STATISTICS, LEAST_TRAINING = 10, 30
"""The lowest probabilities of taking part, in percent."""


@dataclass(frozen=True)
class RestRule:
    """What is wanted in a round, and the device's draw for it, 0 to 99."""

    shortages: Shortages
    draw: int

    @classmethod
    def of(cls, shortages: Shortages | None, seed: int, device: str) -> RestRule | None:
        """The rule for this device in the round with this seed; None where nobody rests."""
        if shortages is None:
            return None
        return cls(shortages, int(100 * generator_of(f"{seed}:{device}:rests").random()))

    def reason(self, plan: UpdateChoice, load: Workload) -> str:
        """Why the device rests, with this plan and these samples; empty if it takes part or sits out."""
        chosen, least = plan.chosen, least_percent(plan)
        if chosen is None or least == 100:
            return ""
        trains = chosen.strategy.traits.trains_extractor
        short = self.shortages.training if trains else self.shortages.statistics
        if len(short) != len(load.class_counts):  # strata: which of them a device has is not known yet
            return ""
        percent = max([least, *(short[label] for label in _classes(chosen, load))])
        if self.draw < percent:
            return ""
        what = "training" if trains else "statistics"
        return (
            f"{RESTS}nothing wanted ({chosen.label} brings {what} of classes that are common; "
            f"it takes part in {percent}% of the rounds)"
        )


def least_percent(plan: UpdateChoice) -> int:
    """The lowest probability of taking part with this plan, in percent; 100 for a device that never rests."""
    if plan.chosen is None:
        return 100
    if not plan.chosen.strategy.traits.trains_extractor:
        return LEAST_STATISTICS
    return LEAST_TRAINING if plan.straggler.straggler else 100


def _classes(chosen: Candidate, load: Workload) -> list[int]:
    """The labels of which the device has as many samples as class statistics need."""
    statistics = kind_statistics.statistics_of(chosen.strategy)
    least = statistics.smallest_count if statistics else 1
    return [label for label, count in enumerate(load.class_counts) if count >= least]
