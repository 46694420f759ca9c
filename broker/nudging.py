"""Keeping a broker awake while it has large messages to hand on to WebSockets.

Mosquitto up to 2.0 with libwebsockets looks after its WebSockets once each time around its loop, gives each
of them 4 KB, and sleeps up to 0.1 s where no client over TCP has anything for it: 40 KB/s. A client over TCP
that says something all the while wakes it (measured with 2.0.11: eight blocks in 0.6 s in place of 9.8 s).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LARGE_BYTES = 4096
"""What it hands on in one go."""
AWAKE_S = 2.0
"""Seconds for which it is kept awake after each large message: eight blocks to a few clients."""
EVERY_S = 0.005


class Nudges:
    """`nudge` says something small to the broker: on a thread that is there while it is needed."""

    def __init__(self, nudge: Callable[[], object]) -> None:
        self._nudge = nudge
        self._until_s = 0.0
        self._awake = False
        self._lock = threading.Lock()

    def begin(self) -> None:
        """For a while from now on. May be called again and again, from any thread."""
        with self._lock:
            self._until_s = time.monotonic() + AWAKE_S
            if self._awake:
                return
            self._awake = True
        threading.Thread(target=self._run, name="nudges", daemon=True).start()

    def _run(self) -> None:
        while not self._over():
            self._nudge()
            time.sleep(EVERY_S)

    def _over(self) -> bool:
        with self._lock:
            self._awake = time.monotonic() < self._until_s
            return not self._awake
