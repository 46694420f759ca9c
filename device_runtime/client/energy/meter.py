"""What a meter is, and the joules of a span between two looks at one, with where they are from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
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
class MeterInfo:
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
class MeterReading:
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
    def about(self) -> MeterInfo:
        """Which it is; the same as long as it lives."""

    def read(self) -> MeterReading:
        """The integral now; from here on it is looked at in between too, until `rest`. Raises MeterError."""

    def rest(self) -> None:
        """Nothing is to be measured until the next `read`: what passes till then is not added."""


def spent(about: MeterInfo, start: MeterReading, end: MeterReading, idle_j: float = nan) -> Energy:
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


# FROM integral: Adding up what a meter shows: watts by trapezoids, or a counter of joules by its steps. Pure.

NOTHING = MeterReading(0.0)

LATE = 2.0
"""So many times the usual interval between two looks is a gap: nobody knows what was in it."""


class Integral(Protocol):
    """What was seen so far."""

    @property
    def reading(self) -> MeterReading:
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
    reading: MeterReading = NOTHING
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
        return replace(self, reading=MeterReading(joules, self.reading.variance + off**2), last=(t, value))

    def held(self, t: float) -> Watts:
        """It is `t`, and nothing came since the last sample: that it still holds is believed to no joule."""
        if self.last is None:
            return self
        then, watts = self.last
        joules = max(0.0, t - then) * watts
        reading = MeterReading(self.reading.joules + joules, self.reading.variance + joules**2)
        return replace(self, reading=reading, last=(t, watts))

    def broken(self) -> Watts:
        return replace(self, last=None)


@dataclass(frozen=True)
class Joules:
    """Of a counter that grows; where it falls it was set back, and what it lost by that is not known."""

    reading: MeterReading = NOTHING
    last: float | None = None

    def after(self, t: float, value: float) -> Joules:
        grown = 0.0 if self.last is None else max(0.0, value - self.last)
        return Joules(MeterReading(self.reading.joules + grown), value)

    def broken(self) -> Joules:
        return replace(self, last=None)


# FROM polled: A meter that is looked at now and then, by a thread while something is measured.


class Polled:
    """See `meter.Meter`. `look` returns watts or joules, as the integral takes them, or raises MeterError.

    A look that fails in between leaves a gap; one that fails at a reading fails that reading.
    """

    def __init__(
        self, about: MeterInfo, look: Callable[[], float], integral: Integral, clock: Callable[[], float]
    ) -> None:
        self.about = about
        self._look, self._integral, self._clock = look, integral, clock
        self._lock = threading.Lock()
        self._resting: threading.Event | None = None

    def read(self) -> MeterReading:
        self._add()
        if self._resting is None:
            self._resting = threading.Event()
            self._start(self._resting)
        return self._integral.reading

    def rest(self) -> None:
        if self._resting is not None:
            self._resting.set()
            self._resting = None
        with self._lock:
            self._integral = self._integral.broken()

    def _start(self, resting: threading.Event) -> None:
        thread = threading.Thread(target=self._watch, args=(resting,), name="meter", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # memory runs out
            self.rest()
            raise MeterError(str(error)) from None

    def _looked(self) -> float:
        """What a device file or a program says may be nothing that is expected, or be gone."""
        try:
            return self._look()
        except (OSError, ValueError) as error:
            raise MeterError(str(error)) from None

    def _watch(self, resting: threading.Event) -> None:
        while not resting.wait(self.about.every_s):
            with suppress(MeterError):
                self._add(resting)

    def _add(self, resting: threading.Event | None = None) -> None:
        """One look more; nothing is added once it rests. What the first and the last look take, which may be
        seconds, is not of the work between them.
        """
        with self._lock:
            first, began = self._resting is None, self._clock()
            value = self._looked()
            if resting is None or not resting.is_set():
                self._integral = self._integral.after(self._clock() if first else began, value)
