"""Runs what blocks, in a thread for scripts and notebooks, or here until a signal stops it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class BackgroundRun:
    """A function that runs in a thread of its own from the start."""

    def __init__(self, run: Callable[[], None], name: str) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, at the latest after `timeout_s` seconds. Raises its error, once."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # it is raised by `wait`
            self._error = error
