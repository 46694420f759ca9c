"""Devices in a note for people: a few by name, and how many more."""

from __future__ import annotations

from collections.abc import Sequence

from .spool import Row

MOST = 4


def named(devices: Sequence[str], kind: str) -> str:
    """And what they sent."""
    more = f" and {len(devices) - MOST} more" if len(devices) > MOST else ""
    return f"{', '.join(devices[:MOST])}{more} ({kind})"


def of(rows: Sequence[Row]) -> str:
    """Whose these are."""
    return named([row.device for row in rows], rows[0].told.kind)
