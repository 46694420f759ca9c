"""Events that a link reports, in the order in which they happened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Connected:
    """The broker accepted the connection and its subscriptions. `first` is false after a reconnection.

    Retained messages may come just before this event.
    """

    first: bool


@dataclass(frozen=True)
class Disconnected:
    """The connection ended; the link tries to reconnect."""

    reason: str


@dataclass(frozen=True)
class Received:
    """A message. `retain`: the broker had kept it from before the subscription."""

    topic: str
    payload: bytes
    retain: bool = False


Event = Connected | Disconnected | Received

WAKE = Received("", b"")
"""Put into a queue of events to end a wait, also by a signal handler.

A signal that comes just as `SimpleQueue.get` times out would make the wait endless (CPython 3.11, _queue.c:
the rest of the timeout is then below 0, which means none).
"""


@dataclass(frozen=True)
class Will:
    """A message for later: the last will, which the broker sends if we vanish, or a greeting or farewell."""

    topic: str
    payload: bytes
    retain: bool = True
