"""Options of a link."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .link_events import Will
from .url import BrokerUrl


@dataclass(frozen=True)
class LinkOptions:
    """Options of a Link.

    `queue_limit` bounds the messages that wait to be sent, `queue_bytes` their bytes. `seed` is of the jitter
    of reconnections (None: the system's randomness). `greeting` is published at each connection before any
    other message: it shows a busy device as present again. `renewed` gives the URL with the credentials as
    they are on the disk now; it is called before each connection, and may raise.
    """

    will: Will | None = None
    subscriptions: tuple[str, ...] = ()
    keepalive_s: int = 30
    reconnect_s: tuple[float, float] = (0.5, 30.0)
    """Seconds before the first attempt, and at most; each wait is shortened at random by up to a half."""
    queue_limit: int = 4096
    queue_bytes: int = 64 * 1024**2
    seed: int | None = None
    greeting: Will | None = None
    steps_s: tuple[float, float] = (5.0, 60.0)
    """Seconds for each step of connecting, at first and at most: doubled after each that ran out of time."""
    renewed: Callable[[], BrokerUrl] | None = None
