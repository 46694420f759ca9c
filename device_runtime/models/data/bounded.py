"""Caps the memory of this process: an allocation beyond it fails, and nothing is killed (Linux)."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

STATUS = Path("/proc/self/status")
SLACK = 16 << 20
"""Bytes beyond what is free that the kernel lets a process have at least, and half of that at least: not all
that is asked for is used. An engine asks for powers of two, up to 1.6 times what it then holds.
"""


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


def cap(more: int) -> None:
    """Let this process ask for so many bytes more. Does nothing where there is no /proc."""
    try:
        found = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return
    if found is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = 1024 * int(found[1]) + more
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
