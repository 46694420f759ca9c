"""A process held to some memory, without swap, by a control group (version 1, as root)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path("/sys/fs/cgroup/memory")
_ENTER = 'echo $$ > "$1/cgroup.procs" || exit 3; shift; exec "$@"'


class Held:
    """`enter`: the words before a command that starts in the group, and imports nothing before."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.enter = ("sh", "-c", _ENTER, "sh", str(folder))

    @property
    def killed(self) -> int:
        """Processes that the kernel has killed here for want of memory."""
        found = dict(line.split() for line in (self._folder / "memory.oom_control").read_text().splitlines())
        return int(found["oom_kill"])


@contextmanager
def held(limit_bytes: int) -> Iterator[Held]:
    """Raises OSError where no group can be made."""
    folder = ROOT / f"small-board-{os.getpid()}"
    folder.mkdir()
    try:
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (folder / "memory.swappiness").write_text("0")
        (folder / "memory.memsw.limit_in_bytes").write_text(str(limit_bytes))
        yield Held(folder)
    finally:
        folder.rmdir()
