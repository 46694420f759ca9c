"""What goes wrong, and when: in virtual seconds since the run began."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from device_runtime.simulation.errors import ScenarioError


@dataclass(frozen=True)
class _Fault:
    at_s: float
    back_s: float = inf

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < self.back_s:
            raise ScenarioError(
                f"a fault from {self.at_s} s to {self.back_s} s: it begins at 0 or later, and ends after"
            )


@dataclass(frozen=True)
class Crash(_Fault):
    """A device loses power; from `back_s` on a new life of its process goes on with what is on its disk."""

    device: str = ""


@dataclass(frozen=True)
class LinkLost(_Fault):
    """A device is off the network until `back_s`; it goes on computing."""

    device: str = ""


@dataclass(frozen=True)
class AggregatorKilled(_Fault):
    """The aggregator dies; at `back_s` it is started again on its run folder."""


Fault = Crash | LinkLost | AggregatorKilled
