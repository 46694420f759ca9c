"""What a link reports, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Connected:
    """The broker took us and our subscriptions. `first` is false after a reconnection.

    What is retained for us may come just before this.
    """

    first: bool


@dataclass(frozen=True)
class Disconnected:
    """The connection ended; the link goes on trying."""

    reason: str


@dataclass(frozen=True)
class Received:
    """A message. `retain` means that the broker kept it for us from before we subscribed."""

    topic: str
    payload: bytes
    retain: bool = False


Event = Connected | Disconnected | Received


@dataclass(frozen=True)
class Will:
    """A message for later: what the broker sends when we vanish, or what we send when we leave."""

    topic: str
    payload: bytes
    retain: bool = True
