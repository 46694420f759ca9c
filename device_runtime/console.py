"""Logging of commands to stderr: plain lines, or one line per event in JSON or text, with fields."""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from io import TextIOWrapper
from math import inf, isfinite
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]
"""How a service writes its log."""

WARNINGS, OTHERS, WITHIN_S = 20, 1200, 60.0
"""Warnings and errors, and lines of lower levels, that one line of code may log in WITHIN_S seconds.

Devices and strangers could cause any number of them.
"""
PEER_ERRORS = (OSError, EOFError)
"""Errors of a connection, of TLS, or of the system: where a library logs one, no traceback follows."""

DETAIL = 200
"""The most characters of what a stranger caused."""
SMALL = 1e-3
"""Numbers below this are written with three significant digits."""


def make_streams_usable() -> None:
    """Opens standard streams that are closed on /dev/null, and escapes what their encoding lacks."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (handle := os.open(os.devnull, os.O_RDWR)) < 3:  # else a file of ours would get the number
            pass
        os.close(handle)
        sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - for as long as the process
        sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")


def flush_output() -> OSError | None:
    """Writes what was printed; returns the error if that fails. What is printed from then on is dropped."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError, ValueError):  # what is in the buffer can then be dropped at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    except ValueError:  # closed
        return None
    return None


def output_failed(error: BaseException) -> bool:
    """Whether an error is of standard output: its reader has gone, or its disk is full."""
    if not isinstance(error, OSError) or error.filename is not None:
        return False
    try:
        sys.stdout.flush()
        return isinstance(error, BrokenPipeError) and _reader_has_gone(sys.stdout.fileno())
    except OSError as again:
        return again.errno == error.errno
    except ValueError:
        return False


def _reader_has_gone(number: int) -> bool:
    """Whether nobody reads this pipe any more."""
    poll = select.poll()
    poll.register(number, 0)  # poll reports a closed other end in any case
    return any(events & select.POLLERR for _, events in poll.poll(0))


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Drops lines that cannot be written: a full disk ends no work, and fills no log with tracebacks."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def log_to_stderr() -> None:
    """Log this package's messages from INFO on, and the warnings of others."""
    handler = _StandardErrorHandler(sys.stderr)
    logging.basicConfig(format="%(message)s", level=logging.WARNING, handlers=[handler])
    logging.getLogger("device_runtime").setLevel(logging.INFO)


def log_as_service(form: LogFormat | None, level: str = "info") -> None:
    """Sets the format of the log (None: plain lines), limits its lines, and sets our packages' level."""
    logging.getLogger("device_runtime").setLevel(level.upper())
    limit_lines()
    if form:
        for handler in logging.root.handlers:
            handler.setFormatter(LogFormatter(form))


def limit_lines() -> None:
    """Adds a filter to every handler that drops lines which come too often."""
    for handler in logging.root.handlers:
        if not any(isinstance(log_filter, LogLimit) for log_filter in handler.filters):
            handler.addFilter(LogLimit())


class LogLimit(logging.Filter):
    """Lets each line of code log so many lines in WITHIN_S seconds, and one traceback of each type of error.

    The first line after that says how many were suppressed. An error without its traceback is a line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int, type | None], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        error = record.exc_info[1] if record.exc_info else None
        place = (record.pathname, record.lineno, type(error) if error else None)
        most = WARNINGS if record.levelno >= logging.WARNING else OTHERS
        since, count = self._counts.get(place, (record.created, 0))
        over = not 0 <= record.created - since < WITHIN_S  # below 0 where the clock was set back
        if error and (_is_of_peer(record, error) or (count and not over)):
            _change(record, f"{record.getMessage().strip()}: {type(error).__name__}: {error}")
            record.exc_info = record.exc_text = None
        if over and count > most:
            _change(record, f"{record.getMessage()} ({count - most} such lines before it were suppressed)")
        self._counts[place] = (record.created, 1) if over else (since, count + 1)
        return over or count < most


def _is_of_peer(record: logging.LogRecord, error: BaseException) -> bool:
    is_own = record.name.partition(".")[0] == __name__.partition(".")[0]
    return not is_own and isinstance(error, PEER_ERRORS)


def _change(record: logging.LogRecord, text: str) -> None:
    record.msg, record.args = " ".join(text.split()), ()


class CountedLines:
    """Logs what strangers cause: a line of each kind in WITHIN_S seconds, with how many there were since."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log, self._clock = log, clock
        self._counts: dict[str, tuple[float, int]] = {}

    def say(self, kind: str, detail: object = "") -> None:
        """Log it, or count it. `kind`: one of few fixed texts; `detail`: of the latest one."""
        now = self._clock()
        since, count = self._counts.get(kind, (-inf, 0))
        if now - since < WITHIN_S:
            self._counts[kind] = (since, count + 1)
            return
        self._counts[kind] = (now, 0)
        latest = " ".join(str(detail).split())[:DETAIL]
        more = f" ({count + 1} since the last such line)" if count else ""
        self._log.warning("%s%s%s", kind, f": {latest}" if latest else "", more)


class LogFormatter(logging.Formatter):
    """Formats records as lines: the event's text, then its `fields`.

    JSON has `time` (UTC, RFC 3339), `level`, `logger`, `event`, the fields, and `exception`.
    """

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields: dict[str, object] = getattr(record, "fields", {})
        event, level = record.getMessage(), record.levelname.lower()
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if self._form == "text":
            more = "".join(f" {name}={_short(value)}" for name, value in fields.items())
            return f"{time} {level} {record.name}: {event}{more}" + (f"\n{trace}" if trace else "")
        line = {"time": time, "level": level, "logger": record.name, "event": event, **fields}
        if trace:
            line["exception"] = trace
        import msgspec  # other commands that only log do not need it

        return msgspec.json.encode(line, enc_hook=str).decode()


def _short(value: object) -> str:
    text = str(_rounded(value))
    return repr(text) if not text or any(c.isspace() or c in "='\"" for c in text) else text


def _rounded(value: object) -> object:
    """Rounds all numbers in a value for people: to six decimals, small ones to three significant digits."""
    match value:
        case float() if not isfinite(value):
            return value
        case float():
            return round(value, 6) if abs(value) >= SMALL else float(f"{value:.3g}")
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case list() | tuple():
            return type(value)(map(_rounded, value)) if type(value) in (list, tuple) else value
    return value
