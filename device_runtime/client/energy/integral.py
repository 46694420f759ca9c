"""Adding up what a meter shows: watts by trapezoids, or a counter of joules by its steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from .meter import Reading

NOTHING = Reading(0.0)

LATE = 2.0
"""So many times the usual interval between two looks is a gap: nobody knows what was in it."""


class Integral(Protocol):
    """What was seen so far."""

    @property
    def reading(self) -> Reading:
        """Joules, and how far off they may be."""

    def after(self, t: float, value: float) -> Integral:
        """With one look more: at `t` seconds the meter showed `value`."""

    def broken(self) -> Integral:
        """The next look begins anew: nothing is added for the time until then."""


@dataclass(frozen=True)
class Watts:
    """Of samples (t, W), at every `every_s` seconds.

    Between two of them power may have been anything from one to the other. What a gap lasts longer than
    an interval is believed to no joule.
    """

    every_s: float
    reading: Reading = NOTHING
    last: tuple[float, float] | None = None

    def after(self, t: float, value: float) -> Watts:
        if self.last is None:
            return replace(self, last=(t, value))
        then, before = self.last
        seconds = max(0.0, t - then)
        off = seconds * abs(value - before) / 2
        if seconds > LATE * self.every_s:
            off += (seconds - self.every_s) * max(value, before)
        joules = self.reading.joules + seconds * (value + before) / 2
        return replace(self, reading=Reading(joules, self.reading.variance + off**2), last=(t, value))

    def held(self, t: float) -> Watts:
        """It is `t`, and nothing came since the last sample: that it still holds is believed to no joule."""
        if self.last is None:
            return self
        then, watts = self.last
        joules = max(0.0, t - then) * watts
        reading = Reading(self.reading.joules + joules, self.reading.variance + joules**2)
        return replace(self, reading=reading, last=(t, watts))

    def broken(self) -> Watts:
        return replace(self, last=None)


@dataclass(frozen=True)
class Joules:
    """Of a counter that grows; where it falls it was set back, and what it lost by that is not known."""

    reading: Reading = NOTHING
    last: float | None = None

    def after(self, t: float, value: float) -> Joules:
        grown = 0.0 if self.last is None else max(0.0, value - self.last)
        return Joules(Reading(self.reading.joules + grown), value)

    def broken(self) -> Joules:
        return replace(self, last=None)
