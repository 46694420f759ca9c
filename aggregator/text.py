"""Texts that came from a device, made fit for a log, a terminal and a file."""

from __future__ import annotations

LIMIT = 200
"""Characters that are kept."""


def printable(text: str) -> str:
    """One line without control characters, at most LIMIT characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * LIMIT]).split())
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 3]}..."
