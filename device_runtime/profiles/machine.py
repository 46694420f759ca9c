"""Memory and CPU cores that this process may use, by the machine and its control groups.

A container or a systemd unit (`MemoryMax`) may have limits below the machine's. The kernel shows them only in
the files of the control groups, version 1 or 2, and kills a process that exceeds the memory limit, however
much memory the machine has.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from device_runtime.machine_readings import allowed_memory, machine_memory

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NO_LIMIT = 2**60
"""Version 1 states "no limit" as a number of bytes that no machine has."""
MIB = 2**20


@dataclass(frozen=True)
class MachineMemory:
    """Bytes in all, and bytes that are free now, in addition to those that this process uses."""

    total: int
    free: int

    @property
    def reserve(self) -> int:
        """Bytes left to other processes: a fiftieth of all, between 8 and 64 MiB."""
        return min(max(self.total // 50, 8 * MIB), 64 * MIB)

    @property
    def usable(self) -> int:
        """Bytes that this process may take now: those that are free, without the reserve."""
        return max(0, self.free - self.reserve)


@dataclass(frozen=True)
class _GroupFiles:
    """File names in a control group's folder, and the key of `memory.stat` for reclaimable bytes."""

    limits: tuple[str, ...]
    used: str
    reclaimable: str


_V1 = _GroupFiles(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
_V2 = _GroupFiles(("memory.max", "memory.high"), "memory.current", "inactive_file")


def available_memory(root: Path = ROOT, own: Path = OWN) -> MachineMemory:
    """The memory of the machine, or of the tightest limit or control group around this process."""
    rooms = [MachineMemory(*machine_memory()), *_groups(root, own)]
    if (allowed := allowed_memory()) is not None:
        rooms.append(MachineMemory(*allowed))
    return MachineMemory(min(room.total for room in rooms), min(room.free for room in rooms))


def _groups(root: Path, own: Path) -> Iterator[MachineMemory]:
    """The memory of each control group around this process that has a limit."""
    paths = own_groups(read_system_file(own))
    for mount, controller, files in ((root / "memory", "memory", _V1), (root, "", _V2)):
        for folder in _with_parents(paths.get(controller, "/")):
            if memory := _group_memory(mount / folder, files):
                yield memory


def own_groups(text: str) -> dict[str, str]:
    """Parses /proc/self/cgroup into the group's path by controller; "" is version 2's.

    In a container the paths may not exist; then only the root does, which is the container's own group.
    """
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        paths |= dict.fromkeys(controllers.split(","), path)
    return paths


def _group_memory(folder: Path, files: _GroupFiles) -> MachineMemory | None:
    numbers = [_number(read_system_file(folder / name)) for name in files.limits]
    limits = [limit for limit in numbers if limit is not None and limit < NO_LIMIT]
    used = _number(read_system_file(folder / files.used))
    if not limits or used is None:
        return None
    stat = re.search(rf"^{files.reclaimable} (\d+)$", read_system_file(folder / "memory.stat"), re.MULTILINE)
    in_use = used - (int(stat[1]) if stat else 0)
    return MachineMemory(min(limits), max(0, min(limits) - in_use))


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdecimal() else None


def read_system_file(path: Path) -> str:
    """The text of a system file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def usable_cores() -> int:
    """Number of cores that this process may use, by its affinity and CPU quota; at least 1.

    A quota of one and a half cores counts as two.
    """
    try:
        allowed = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # denied, or another system than Linux
        allowed = os.cpu_count() or 1
    quota = cpu_quota(ROOT, own_groups(read_system_file(OWN)))
    return max(1, allowed if quota is None else min(allowed, ceil(quota)))


def cpu_quota(root: Path, groups: dict[str, str]) -> float | None:
    """The smallest CPU quota, in cores, of the control groups that hold this process; None without one.

    groups: path of each controller's group below `root`; "" is version 2's. A container sees its own group
    as the root, so the folders above a path are read too, in case the path does not exist.
    """
    quotas = [_quota_v2(root / folder) for folder in _with_parents(groups.get("", "/"))]
    quotas += [_quota_v1(root / "cpu" / folder) for folder in _with_parents(groups.get("cpu", "/"))]
    return min((quota for quota in quotas if quota is not None), default=None)


def _with_parents(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> float | None:
    words = read_system_file(folder / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = (read_system_file(folder / f"cpu.cfs_{name}_us").split() for name in ("quota", "period"))
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None
