"""Accounts for the energy of each piece of work: measured by a meter, or modelled without one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import nan

from device_runtime.device.errors import WorkStopped
from device_runtime.profiles import Power

from .meter import MODELLED, Energy, Meter, MeterError, MeterReading, energy_between

log = logging.getLogger(__name__)


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
            measured = energy_between(self._meter.about, self._start, end, seconds * self._idle_w)
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
