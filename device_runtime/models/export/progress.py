"""Shows the progress of an export: a moving line on a terminal, elsewhere lines now and then."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

EVERY_S = 1.0
"""Seconds between two looks at the clock."""
QUIET_S = 5.0
"""Seconds until the first line where no line moves. The time until the next one doubles with each line."""


@dataclass(frozen=True)
class ExportStep:
    """A step of an export: what it does, and how many of the `graphs` are finished when it begins."""

    what: str
    finished: int
    graphs: int


class ProgressLine:
    """Writes which step an export is at, and for how long. Times are in seconds, of any clock.

    moving: one line is replaced again and again; else lines follow each other, ever more rarely.
    """

    def __init__(self, name: str, out: TextIO, moving: bool, now: float) -> None:
        self._name, self._out, self._moving = name, out, moving
        self._started_at = self._step_at = now
        self._next_s = QUIET_S
        self._step: ExportStep | None = None
        self._width = 0

    def begin(self, step: ExportStep, now: float) -> None:
        """A step begins."""
        self._step, self._step_at = step, now
        if self._moving:
            self.tick(now)

    def tick(self, now: float) -> None:
        """Writes the line, if it moves or its time has come."""
        step, passed = self._step, now - self._started_at
        if step is None or not (self._moving or passed >= self._next_s):
            return
        text = f"exporting {self._name}: {step.finished} of {step.graphs} graphs, {passed:.0f} s; {step.what}"
        if self._moving:
            text = text[: shutil.get_terminal_size().columns - 1]
            self._write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._next_s = max(2 * self._next_s, passed)
            self._write(f"{text} (for {now - self._step_at:.0f} s)\n")

    def clear(self) -> None:
        """Takes the moving line away."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # a full disk, or a closed stream: the export goes on
            self._step = None


@contextmanager
def progress_line(
    name: str, out: TextIO | None = None, moving: bool | None = None
) -> Iterator[Callable[[ExportStep], None]]:
    """Shows the steps of an export as long as it is at work; gives the function to call for each.

    out: the stream, standard error by default. moving: whether a line is replaced there, by default on a
    terminal. Log lines of the meantime take the moving line away before they are written.
    """
    out = out or sys.stderr
    line = ProgressLine(name, out, out.isatty() if moving is None else moving, time.monotonic())
    lock, over = threading.RLock(), threading.Event()

    def begin(step: ExportStep) -> None:
        with lock:
            line.begin(step, time.monotonic())

    def before_record(record: logging.LogRecord) -> bool:
        with lock:
            line.clear()
        return True

    def tick() -> None:
        while not over.wait(EVERY_S):
            with lock:
                line.tick(time.monotonic())

    handlers = [*logging.root.handlers, *([logging.lastResort] if logging.lastResort else [])]
    for handler in handlers:
        handler.addFilter(before_record)
    clock = threading.Thread(target=tick, name="export-progress", daemon=True)
    clock.start()
    try:
        yield begin
    finally:
        over.set()
        clock.join()
        line.clear()
        for handler in handlers:
            handler.removeFilter(before_record)
