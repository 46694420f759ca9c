"""Processes held to some memory, without swap, and to a share of one core (control groups 1, as root)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
"""The kernel's usual period: in each, a group may compute for its quota of it."""
SHARES = 2**18
"""Against the 1024 of a usual process: what else the machine does takes little from a group."""
_ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 3; shift; done; shift; exec "$@"'


@dataclass(frozen=True)
class Group:
    """`memory` and `others`: its folders."""

    memory: Path
    others: tuple[Path, ...] = ()

    @property
    def enter(self) -> tuple[str, ...]:
        """The words before a command that starts in the group, and imports nothing before."""
        return ("sh", "-c", _ENTER, "sh", *map(str, (self.memory, *self.others)), "--")

    @property
    def killed(self) -> int:
        """Processes that the kernel has killed here for want of memory."""
        counts = dict(line.split() for line in (self.memory / "memory.oom_control").read_text().splitlines())
        return int(counts["oom_kill"])


@contextmanager
def group(memory_bytes: int, quota: float | None = None) -> Iterator[Group]:
    """A group that may use so much memory, and `quota` of one core. Raises OSError where none can be made."""
    with ExitStack() as until:
        memory = _new_group("memory", until)
        for name, value in (
            ("memory.limit_in_bytes", memory_bytes),
            ("memory.swappiness", 0),
            ("memory.memsw.limit_in_bytes", memory_bytes),
        ):
            (memory / name).write_text(str(value))
        if quota is None:
            yield Group(memory)
            return
        cpu = _new_group("cpu", until)
        (cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (cpu / "cpu.cfs_quota_us").write_text(str(round(quota * PERIOD_US)))
        (cpu / "cpu.shares").write_text(str(SHARES))
        yield Group(memory, (cpu,))


def _new_group(part: str, until: ExitStack) -> Path:
    folder = ROOT / part / f"device-runtime-{os.getpid()}"
    folder.mkdir()
    until.callback(folder.rmdir)
    return folder
