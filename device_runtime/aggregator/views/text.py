"""Cleans texts from devices for logs, terminals and files, and says why a run was abandoned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from device_runtime.aggregator.machine.events import GiveUp, GiveUpSums

LIMIT = 200
"""Most characters of a text from a device."""
NAMED = 3
"""Most devices that a text names."""


def printable(text: str) -> str:
    """A text as one line without control characters, of at most LIMIT characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * LIMIT]).split())
    return line if len(line) <= LIMIT else f"{line[: LIMIT - 3]}..."


def abandoned_text(command: GiveUp, why: Mapping[str, str]) -> str:
    """Says why a run is abandoned: what the devices did, and `why`, the reasons of those that sat out."""
    reasons = [(device, why.get(device, "").split("; ")[0]) for device in command.sat_out]
    texts = [f"{device} ({reason})" if reason else device for device, reason in reasons]
    parts = filter(None, (_named("sit out", texts), _named("missed the deadline", command.missed)))
    return (
        f"round {command.round} is abandoned: {command.deadlines} deadlines in a row, the last of "
        f"{command.deadline_s:g} s, brought no contribution; "
        f"{', '.join(parts) or 'no device sent anything that counts'}. A longer round_deadline_s or cheaper "
        "kinds, with another --run-dir, may help; the same command tries again"
    )


def unopened_text(command: GiveUpSums, helpers: Sequence[str]) -> str:
    """Says why a run is abandoned whose mask helpers do not answer."""
    return (
        f"round {command.round} is not opened: {command.deadlines} deadlines in a row, of "
        f"{command.deadline_s:g} s, brought no answer of {_helpers_text(helpers)}. Nothing is lost: the same "
        "command asks again"
    )


def _helpers_text(helpers: Sequence[str]) -> str:
    return f"mask helper{'s' if len(helpers) > 1 else ''} {', '.join(helpers)}"


def _named(what: str, devices: Sequence[str]) -> str:
    """The number of devices that did `what`, and the names of the first ones."""
    if not devices:
        return ""
    return f"{len(devices)} {what}: {', '.join(devices[:NAMED])}{', ..' if len(devices) > NAMED else ''}"
