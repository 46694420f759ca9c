"""A subscriber on the link that the aggregator uses, which keeps nothing: what the library alone can bear."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterator
from contextlib import contextmanager

from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.url import BrokerUrl


@contextmanager
def beside(url: str) -> Iterator[None]:
    """In a process of its own: each message from a device is answered by 8 bytes on its `dn/echo`."""
    ready = multiprocessing.Event()
    echo = multiprocessing.Process(target=_echo, args=(url, ready), daemon=True)
    echo.start()
    try:
        if not ready.wait(20):
            raise TimeoutError("the subscriber does not connect")
        yield
    finally:
        echo.terminate()
        echo.join()


def _echo(url: str, ready: multiprocessing.synchronize.Event) -> None:
    inbox: queue.SimpleQueue = queue.SimpleQueue()
    options = LinkOptions(subscriptions=(topics.FROM_DEVICES,), queue_limit=65536)
    link = Link(BrokerUrl.parse(url), "echo", inbox, options)
    link.connect()
    ready.set()
    while True:
        event = inbox.get()
        if isinstance(event, Received):
            link.publish(topics.down(event.topic.split("/")[3], "echo"), bytes(8))
