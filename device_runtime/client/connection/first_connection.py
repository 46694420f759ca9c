"""The first connection: a device that is there before its broker, or its network, waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from device_runtime.broker.errors import BrokerUnreachable
from device_runtime.broker.wire.backoff import Patience
from device_runtime.broker.wire.link import LinkOptions

log = logging.getLogger(__name__)


class Connects(Protocol):
    """The part of `broker.wire.link.Link` that is used here."""

    def connect(self) -> None:
        """Raises BrokerUnreachable, BrokerRefused; may be called again."""


def reach(
    link: Connects,
    stop: threading.Event,
    patience: Patience | None = None,
    waits: Callable[[], None] = lambda: None,
) -> bool:
    """Connect, however long that takes; False when `stop` came before. Why it waits is said once in a row,
    and `waits` is called before it does.

    Raises BrokerRefused: who is not let in now will not be later.
    """
    patience = patience or Patience(LinkOptions.reconnect_s)
    said = ""
    while not stop.is_set():
        try:
            link.connect()
        except BrokerUnreachable as error:
            if str(error) != said:
                said = str(error)
                log.warning("%s; trying again until it does", said)
            waits()
            patience.failed()
            stop.wait(patience.wait_s())
        else:
            return True
    return False
