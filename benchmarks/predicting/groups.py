"""Processes held to a share of one core and to some memory, by control groups (version 1, as root)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000
"""The kernel's usual period: in each, a group may compute for `quota` of it."""
SHARES = 2**18
"""Against the 1024 of a usual process: what else the machine does takes little from a group."""
_ENTER = 'for g in "$1" "$2"; do echo $$ > "$g/cgroup.procs" || exit 3; done; shift 2; exec "$@"'


@dataclass(frozen=True)
class Group:
    """`cpu` and `memory`: the folders of a group. Enter it by `command`."""

    cpu: Path
    memory: Path

    def command(self, arguments: Sequence[str]) -> list[str]:
        """These arguments to Python, started in the group: it imports nothing before."""
        return ["sh", "-c", _ENTER, "sh", str(self.cpu), str(self.memory), sys.executable, *arguments]

    @property
    def throttled_s(self) -> float:
        """Seconds for which the group had to wait for its next period, so far."""
        stat = dict(line.split() for line in (self.cpu / "cpu.stat").read_text().splitlines())
        return float(stat["throttled_time"]) / 1e9


@contextmanager
def group(quota: float, memory_bytes: int) -> Iterator[Group]:
    """A group that may use `quota` of one core and so much memory. Raises OSError where none can be made."""
    made = Group(*(ROOT / part / f"prediction-{os.getpid()}" for part in ("cpu", "memory")))
    made.cpu.mkdir()
    try:
        made.memory.mkdir()
        (made.cpu / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (made.cpu / "cpu.cfs_quota_us").write_text(str(round(quota * PERIOD_US)))
        (made.cpu / "cpu.shares").write_text(str(SHARES))
        (made.memory / "memory.limit_in_bytes").write_text(str(memory_bytes))
        yield made
    finally:
        made.cpu.rmdir()
        if made.memory.exists():
            made.memory.rmdir()


def output(made: Group, module: str, order: bytes, timeout_s: float) -> tuple[bytes, str]:
    """What a module's `main` writes, which is given this order; or why nothing came of it."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    try:
        ended = subprocess.run(
            made.command(["-c", program]), input=order, capture_output=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return b"", f"not done in {timeout_s:.0f} s"
    if ended.returncode == 0:
        return ended.stdout, ""
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    killed = (
        "killed for want of memory" if ended.returncode in (-9, 137) else f"ended with {ended.returncode}"
    )
    return b"", f"{killed}: {said[-1]}" if said else killed
