"""A meter that is looked at now and then, by a thread while something is measured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from .integral import Integral
from .meter import About, MeterError, Reading


class Polled:
    """See `meter.Meter`. `look` returns watts or joules, as the integral takes them, or raises MeterError.

    A look that fails in between leaves a gap; one that fails at a reading fails that reading.
    """

    def __init__(
        self, about: About, look: Callable[[], float], integral: Integral, clock: Callable[[], float]
    ) -> None:
        self.about = about
        self._look, self._integral, self._clock = look, integral, clock
        self._lock = threading.Lock()
        self._resting: threading.Event | None = None

    def read(self) -> Reading:
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
