"""The interface of a meter, energy between two readings, and the energy of each piece of work.

Integration is by trapezoids for watts, and by steps for a counter of joules. Without a meter, energy is
modelled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from math import hypot, isnan, nan, sqrt
from typing import Protocol

from device_runtime.broker.wire.messages import MODELLED as MODELLED
from device_runtime.device.errors import DeviceError, WorkStopped
from device_runtime.profiles import Power

log = logging.getLogger(__name__)

MIXED = "mixed"
"""The source of a sum over several meters."""


class MeterError(DeviceError):
    """A meter that cannot be read, now or at all, or that does not give power or energy."""


class NoMeter(MeterError):
    """This machine has no such meter."""


@dataclass(frozen=True)
class MeterInfo:
    """Names a meter, what its joules cover, and their error.

    `error` is the relative error of every figure, `step_j` the smallest step in joules, `every_s` the seconds
    between samples while something is measured.
    """

    source: str
    covers: str
    error: float
    step_j: float = 0.0
    every_s: float = 1.0


@dataclass(frozen=True)
class MeterReading:
    """A running integral: joules so far, and their variance in J².

    The variance sums the squared errors of what lay between samples.
    """

    joules: float
    variance: float = 0.0


@dataclass(frozen=True)
class Energy:
    """Joules of a piece of work, and their uncertainty.

    `joules` are all that the meter saw (of the whole device, if it covers that), idle power included.
    `above_idle_j` is what remains without idle power, below 0 if that was more; nan if it is not known.
    `above_idle_off_j` is the meter's error of it in joules. `uncertainty` is a fraction of `joules`, 0 to 1:
    the true figure is taken to be within it.
    """

    joules: float = 0.0
    source: str = MODELLED
    uncertainty: float = 1.0
    above_idle_j: float = nan
    above_idle_off_j: float = 0.0

    @property
    def is_measured(self) -> bool:
        """Whether a meter measured it; otherwise it is modelled from power figures and time."""
        return self.source != MODELLED


class Meter(Protocol):
    """A meter that adds up joules. Made by `energy.find_meter`."""

    @property
    def about(self) -> MeterInfo:
        """Which meter it is; constant."""

    def read(self) -> MeterReading:
        """The integral now; it is sampled in the background from now on, until `rest`. Raises MeterError."""

    def rest(self) -> None:
        """Stop sampling until the next `read`: energy used until then is not added."""


def energy_of(about: MeterInfo, start: MeterReading, end: MeterReading, idle_j: float = nan) -> Energy:
    """Energy between two readings of one meter; `idle_j` of it would have been used at idle anyway.

    Independent errors add up by their squares: of the meter's scale, of its step, and between samples; above
    idle also that of the scale of `idle_j`.
    """
    joules = max(0.0, end.joules - start.joules)
    off = sqrt((about.error * joules) ** 2 + about.step_j**2 + max(0.0, end.variance - start.variance))
    uncertainty = min(1.0, off / joules) if joules > 0 else 1.0
    above_off = 0.0 if isnan(idle_j) else hypot(off, about.error * idle_j)
    return Energy(joules, about.source, uncertainty, joules - idle_j, above_off)


def together(parts: Iterable[Energy]) -> Energy:
    """The sum. Errors may all be in the same direction, so they add up; it is measured if every part is."""
    summed = list(parts)
    joules = sum(part.joules for part in summed)
    off = sum(part.uncertainty * part.joules for part in summed)
    sources = {part.source for part in summed} or {MODELLED}
    one_source = sources.pop() if len(sources) == 1 else MODELLED if MODELLED in sources else MIXED
    return Energy(joules, one_source, off / joules if joules else 1.0)


NOTHING = MeterReading(0.0)

LATE = 2.0
"""So many times the usual interval between two samples is a gap: what was used in it is not known."""


class Integral(Protocol):
    """A running integral of what a meter shows. Immutable."""

    @property
    def reading(self) -> MeterReading:
        """Joules, and their variance."""

    def after(self, t: float, value: float) -> Integral:
        """With one more sample: at `t` seconds the meter showed `value`."""

    def broken(self) -> Integral:
        """The next sample starts anew: nothing is added for the time until then."""


@dataclass(frozen=True)
class PowerIntegral:
    """Integrates samples of power (t, W), at every `every_s` seconds, by trapezoids.

    Between two samples, power may have been anything from one to the other. In a gap, the time beyond one
    interval may have an error of its whole energy.
    """

    every_s: float
    reading: MeterReading = NOTHING
    last: tuple[float, float] | None = None

    def after(self, t: float, value: float) -> PowerIntegral:
        if self.last is None:
            return replace(self, last=(t, value))
        then, before = self.last
        seconds = max(0.0, t - then)
        off = seconds * abs(value - before) / 2
        if seconds > LATE * self.every_s:
            off += (seconds - self.every_s) * max(value, before)
        joules = self.reading.joules + seconds * (value + before) / 2
        return replace(self, reading=MeterReading(joules, self.reading.variance + off**2), last=(t, value))

    def extend(self, t: float) -> PowerIntegral:
        """At `t` no new sample has come: the last is assumed to hold, with an error of the whole energy."""
        if self.last is None:
            return self
        then, watts = self.last
        joules = max(0.0, t - then) * watts
        reading = MeterReading(self.reading.joules + joules, self.reading.variance + joules**2)
        return replace(self, reading=reading, last=(t, watts))

    def broken(self) -> PowerIntegral:
        return replace(self, last=None)


@dataclass(frozen=True)
class CounterIntegral:
    """Adds up the steps of a growing counter; if it falls, it was reset, and that step is lost."""

    reading: MeterReading = NOTHING
    last: float | None = None

    def after(self, t: float, value: float) -> CounterIntegral:
        grown = 0.0 if self.last is None else max(0.0, value - self.last)
        return CounterIntegral(MeterReading(self.reading.joules + grown), value)

    def broken(self) -> CounterIntegral:
        return replace(self, last=None)


class PolledMeter:
    """A meter that a thread samples while something is measured; see `Meter`.

    `look` returns watts or joules, as the integral takes them, or raises MeterError. A sample that fails in
    between leaves a gap; one that fails at a reading fails that reading.
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
        """One sample; a device file or a program may be gone or give something else."""
        try:
            return self._look()
        except (OSError, ValueError) as error:
            raise MeterError(str(error)) from None

    def _watch(self, resting: threading.Event) -> None:
        while not resting.wait(self.about.every_s):
            with suppress(MeterError):
                self._add(resting)

    def _add(self, resting: threading.Event | None = None) -> None:
        """Add one sample; nothing is added once the meter rests.

        The first and the last sample may take seconds to read; that time is not counted as the work's.
        """
        with self._lock:
            first, began = self._resting is None, self._clock()
            value = self._looked()
            if resting is None or not resting.is_set():
                self._integral = self._integral.after(self._clock() if first else began, value)


@contextmanager
def resting(meter: Meter | None) -> Iterator[None]:
    """Inside, measured work is paused: energy that the device uses then is not counted as the work's.

    If the work is given up (WorkStopped) the meter stays at rest; otherwise it goes on, as a cheaper form
    may.
    """
    if meter is None:
        yield
        return
    with suppress(MeterError):
        meter.read()
    meter.rest()
    goes_on = True
    try:
        yield
    except WorkStopped:
        goes_on = False
        raise
    finally:
        if goes_on:
            with suppress(MeterError):
                meter.read()


class Account:
    """Measures one piece of work after another, between `begin` and `end`.

    `cpu` gives the processor seconds of this process; without it all of the time counts as computing, as on
    an emulated device. `idle_w`: power of the device at rest by this meter; nan if it was not measured.
    """

    def __init__(
        self, meter: Meter | None = None, cpu: Callable[[], float] | None = None, idle_w: float = nan
    ) -> None:
        self._meter, self._cpu, self._idle_w = meter, cpu, idle_w
        self._start: MeterReading | None = None
        self._busy_s = 0.0
        self._warned = ""

    def begin(self) -> None:
        self._start = self._read()
        self._busy_s = self._cpu() if self._cpu else 0.0

    def end(self, power: Power, seconds: float) -> Energy:
        """Energy since `begin`, which was `seconds` ago.

        It is modelled if there is no meter, or if the meter fails or is too coarse.
        """
        end = None if self._start is None else self._read()
        if self._meter is not None:
            self._meter.rest()
        if self._meter is not None and self._start is not None and end is not None:
            measured = energy_of(self._meter.about, self._start, end, seconds * self._idle_w)
            if measured.uncertainty < 1:
                return measured
        return modelled(power, seconds, self._cpu() - self._busy_s if self._cpu else seconds)

    def _read(self) -> MeterReading | None:
        if self._meter is None:
            return None
        try:
            return self._meter.read()
        except MeterError as error:
            if str(error) != self._warned:
                log.warning("energy is modelled: %s: %s", self._meter.about.source, error)
            self._warned = str(error)
            return None


def modelled(power: Power, seconds: float, busy_s: float) -> Energy:
    """Energy from a profile's power figures: load power for busy seconds, idle power for the others.

    `busy_s` are the processor seconds of this process. `load_w` stands for a device that trains, as in the
    cost model, however many of its cores that uses.
    """
    busy_s = min(max(0.0, busy_s), seconds)
    above = busy_s * max(0.0, power.load_w - power.idle_w)
    return Energy(seconds * power.idle_w + above, MODELLED, power.uncertainty, above)
