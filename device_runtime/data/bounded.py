"""Reading that may take no more memory than there is: who asks for more is refused, and nothing is killed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from device_runtime.watchdog import SLACK, cap


@contextmanager
def bounded(room_bytes: int | None) -> Iterator[None]:
    """Inside, MemoryError is raised where the process would hold more than twice this, and a little (Linux).

    `room_bytes`: what samples may take, half of what the process may hold; None sets no limit.
    """
    if room_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    cap(max(0, 2 * room_bytes - int(psutil.Process().memory_info().rss)) + SLACK)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
