"""Work as it goes on: it ends when the device is to stop, and stands still while it may not be done."""

from __future__ import annotations

import threading
from collections.abc import Callable

from device_runtime.client.connection.offers import Open
from device_runtime.client.duty import Duty
from device_runtime.client.energy import Meter, resting
from device_runtime.client.errors import RoundOver, Stopped
from device_runtime.client.training.free_memory import rest

from .work_gate import LOOK_S, Hours


class Going:
    """Of what `duty` does, in its `hours`. `hear` takes what comes within so many seconds.

    `meter` tells the energy of the work: not of what is used while it stands still.
    """

    def __init__(
        self, hours: Hours, duty: Duty, hear: Callable[[float], object], meter: Meter | None
    ) -> None:
        self.stop = threading.Event()
        self._hours, self._duty, self._hear, self._meter = hours, duty, hear, meter
        self._share = 0.0

    def progress(self, done: float) -> None:
        """So much is done, from 0 to 1. Raises as `between` does."""
        self._share = done
        self.between()

    def between(self) -> None:
        """Called between steps of the work. What comes meanwhile is heard, and what waits is sent.

        Raises Stopped when the device is to stop, or its round is over; RoundOver when that closed in the
        meantime; OutOfMemory when memory runs out.
        """
        self._heed_stop()
        current = self._duty.open
        if self._hours.open() or current is None:
            return
        rest()
        with self._hours.held(), resting(self._meter):
            while not self._hours.open():
                self._duty.stand_by()
                self._hear(LOOK_S)
                self._heed_stop()
                self._still_wanted(current)
        self._duty.resume()

    def _heed_stop(self) -> None:
        if self.stop.is_set():
            raise Stopped(f"stopped with {self._share:.0%} of an update done: it is not sent")

    def _still_wanted(self, current: Open) -> None:
        """Whether work that stands still is to go on one day. Raises as `between` does."""
        newest, mine = self._duty.open, current.offer
        if newest is None or (newest.offer.run, newest.offer.round) != (mine.run, mine.round):
            raise Stopped(f"round {mine.round} given up, {self._share:.0%} done: {self._hours.reason}")
        if self._hours.clock() >= newest.closes:
            raise RoundOver(f"{self._share:.0%} done when the round closed; {self._hours.reason}")
        self._duty.place.heed()
