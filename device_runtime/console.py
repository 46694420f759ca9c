"""Logging of commands to stderr: plain lines, or one line per event in JSON or text, with fields."""

from __future__ import annotations

import logging
import sys
from datetime import datetime, timezone
from math import isfinite
from typing import Literal

LogFormat = Literal["text", "json"]
"""How a service writes its log."""

WARNINGS, WITHIN_S = 20, 60.0
"""Warnings that one line of code may log in WITHIN_S seconds; devices could cause any number of them."""

SMALL = 1e-3
"""Numbers below this are written with three significant digits."""


def log_to_stderr() -> None:
    """Log this package's messages from INFO on, and the warnings of others."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("device_runtime").setLevel(logging.INFO)


def log_as_service(form: LogFormat | None, level: str = "info") -> None:
    """Sets the format of the log (None: plain lines), limits its warnings, and sets our packages' level."""
    logging.getLogger("device_runtime").setLevel(level.upper())
    limit_warnings()
    if form:
        for handler in logging.root.handlers:
            handler.setFormatter(LogFormatter(form))


def limit_warnings() -> None:
    """Adds a filter to every handler that drops warnings which come too often."""
    for handler in logging.root.handlers:
        if not any(isinstance(one, WarningLimit) for one in handler.filters):
            handler.addFilter(WarningLimit())


class WarningLimit(logging.Filter):
    """Lets each line of code log WARNINGS warnings in WITHIN_S seconds.

    The first warning after that says how many were suppressed.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        if record.levelno != logging.WARNING:
            return True
        place = (record.pathname, record.lineno)
        since, count = self._seen.get(place, (record.created, 0))
        over = not 0 <= record.created - since < WITHIN_S  # below 0 where the clock was set back
        if over and count > WARNINGS:
            record.msg = f"{record.getMessage()} ({count - WARNINGS} such lines before it were suppressed)"
            record.args = ()
        self._seen[place] = (record.created, 1) if over else (since, count + 1)
        return over or count < WARNINGS


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
