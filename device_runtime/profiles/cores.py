"""How many cores this process may use: fewer than the machine has, under a quota or an affinity."""

from __future__ import annotations

import os
from math import ceil
from pathlib import Path

from .machine_memory import OWN, ROOT, own_groups, text_of


def usable_cores() -> int:
    """At least one. A quota of one and a half cores counts as two."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(ROOT, own_groups(text_of(OWN)))
    return max(1, allowed if quota is None else min(allowed, ceil(quota)))


def cpu_quota(root: Path, groups: dict[str, str]) -> float | None:
    """The smallest CPU quota, in cores, of the control groups that hold this process; None without one.

    groups: path of each controller's group below `root`; "" is version 2's. A container sees its own group
    as the root, so what lies above a path that is not there is asked too.
    """
    found = [_quota_v2(root / folder) for folder in _upwards(groups.get("", "/"))]
    found += [_quota_v1(root / "cpu" / folder) for folder in _upwards(groups.get("cpu", "/"))]
    return min((quota for quota in found if quota is not None), default=None)


def _upwards(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> float | None:
    words = text_of(folder / "cpu.max").split()
    return int(words[0]) / int(words[1]) if len(words) == 2 and words[0] != "max" else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = (text_of(folder / f"cpu.cfs_{name}_us").split() for name in ("quota", "period"))
    return int(quota[0]) / int(period[0]) if quota and period and int(quota[0]) > 0 else None
