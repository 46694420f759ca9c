"""Limits the memory of this process, so that an allocation fails and nothing is killed (Linux)."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from device_runtime.machine_readings import resident_bytes

STATUS = Path("/proc/self/status")
SLACK = 16 << 20
"""Bytes that a process may always allocate beyond the limit.

Not all that is allocated is used: an engine allocates powers of two, up to 1.6 times what it then holds.
"""


@contextmanager
def memory_limit(room_bytes: int | None) -> Iterator[None]:
    """Inside, MemoryError is raised if the process would hold more than 2 * room_bytes + SLACK (Linux).

    room_bytes: bytes that samples may take, half of what the process may hold; None sets no limit.
    """
    if room_bytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory(max(0, 2 * room_bytes - resident_bytes()) + SLACK)
    try:
        yield
    finally:
        unlimit_memory(before)


def unlimit_memory(before: tuple[int, int]) -> None:
    """Sets the limit (RLIMIT_DATA) that there was before."""
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, before)


def limit_memory(more: int) -> None:
    """Limits this process to `more` bytes beyond what it has allocated. Does nothing without /proc."""
    try:
        line = re.search(r"^VmData:\s+(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    except OSError:  # not Linux
        return
    if line is None:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = 1024 * int(line[1]) + more
    with suppress(OSError, ValueError):  # a sandbox that does not let limits be set
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))
