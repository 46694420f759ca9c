"""What systemd wants to hear (sd_notify(3)): that we are ready, that we still work, that we stop."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress


def tell(state: str) -> None:
    """Say a state, "READY=1"; nothing happens where nobody asked for it ($NOTIFY_SOCKET)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state.encode(), f"\0{address[1:]}" if address[0] == "@" else address)


def watchdog_s() -> float | None:
    """Seconds after which systemd takes silence for a hang; None when it does not look."""
    try:
        return int(os.environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None


class Watchdog:
    """Says that we still work for as long as the loop does; a context manager.

    `silence_s` gives the seconds since the loop last looked at the clock.
    """

    def __init__(self, silence_s: Callable[[], float]) -> None:
        self._silence_s = silence_s
        self._stop = threading.Event()
        self._limit_s = watchdog_s()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        tell("READY=1")
        if self._limit_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        tell("STOPPING=1")
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        limit_s = self._limit_s or 0.0
        while not self._stop.wait(limit_s / 4):
            if self._silence_s() < limit_s / 2:
                tell("WATCHDOG=1")
