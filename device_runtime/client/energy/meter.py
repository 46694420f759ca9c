"""What a meter is, and the joules of a span between two looks at one, with where they are from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isnan, nan, sqrt
from typing import Protocol

from device_runtime.client.errors import DeviceError

MODELLED = "modelled"
"""The source of what no meter has measured."""
MIXED = "mixed"
"""The source of a sum of figures of several meters."""


class MeterError(DeviceError):
    """A meter that cannot be read, now or at all, or that says something else than power or energy."""


class NoMeter(MeterError):
    """This machine has no such meter."""


@dataclass(frozen=True)
class About:
    """Which meter it is, what its joules cover, and how far off they may be.

    `error` is the fraction that every figure may be off, `step_j` its smallest step in joules, `every_s`
    seconds from one look at it to the next while something is measured.
    """

    source: str
    covers: str
    error: float
    step_j: float = 0.0
    every_s: float = 1.0


@dataclass(frozen=True)
class Reading:
    """A running integral: joules that were seen so far, and the sum of squares, in J², of how far what lay
    between looks may be off.
    """

    joules: float
    variance: float = 0.0


@dataclass(frozen=True)
class Energy:
    """Joules of a span of work, and how far to believe them.

    `joules` are all that the meter saw (of the whole device, where it covers that): what it would have used
    idle is included. `above_idle_j` is what remains without that; nan where the idle power is not known.
    `uncertainty` is a fraction of `joules`, 0 to 1: the true figure is taken to be within it.
    """

    joules: float = 0.0
    source: str = MODELLED
    uncertainty: float = 1.0
    above_idle_j: float = nan

    @property
    def measured(self) -> bool:
        """Whether a meter said so; else it is modelled from power figures and time."""
        return self.source != MODELLED


class Meter(Protocol):
    """Something that adds up joules. Made by `energy.find`."""

    @property
    def about(self) -> About:
        """Which it is; the same as long as it lives."""

    def read(self) -> Reading:
        """The integral now; from here on it is looked at in between too, until `rest`. Raises MeterError."""

    def rest(self) -> None:
        """Nothing is to be measured until the next `read`: what passes till then is not added."""


def spent(about: About, start: Reading, end: Reading, idle_j: float = nan) -> Energy:
    """What was used between two readings of one meter; `idle_j` of it is what it would have used anyway.

    Independent errors add up by their squares: of the meter's scale, of its step, of what lay between looks.
    """
    joules = max(0.0, end.joules - start.joules)
    off = sqrt((about.error * joules) ** 2 + about.step_j**2 + max(0.0, end.variance - start.variance))
    uncertainty = min(1.0, off / joules) if joules > 0 else 1.0
    return Energy(joules, about.source, uncertainty, nan if isnan(idle_j) else max(0.0, joules - idle_j))


def together(parts: Iterable[Energy]) -> Energy:
    """Their sum. They may all be off in the same direction; it is measured if every part is."""
    summed = list(parts)
    joules = sum(one.joules for one in summed)
    off = sum(one.uncertainty * one.joules for one in summed)
    sources = {one.source for one in summed} or {MODELLED}
    one_source = sources.pop() if len(sources) == 1 else MODELLED if MODELLED in sources else MIXED
    return Energy(joules, one_source, off / joules if joules else 1.0)
