"""A measurement in a process of its own, held to a share of a core and to some memory."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.control_groups import Group


def output(group: Group, module: str, order: bytes, timeout_s: float) -> tuple[bytes, str]:
    """What a module's `main` writes, which is given this order; or why nothing came of it."""
    program = f"import sys; sys.path[:] = {sys.path!r}; from {module} import main; main()"
    try:
        ended = subprocess.run(
            [*group.enter, sys.executable, "-c", program], input=order, capture_output=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return b"", f"not done in {timeout_s:.0f} s"
    if ended.returncode == 0:
        return ended.stdout, ""
    lines = ended.stderr.decode(errors="replace").strip().splitlines()
    killed = (
        "killed for want of memory" if ended.returncode in (-9, 137) else f"ended with {ended.returncode}"
    )
    return b"", f"{killed}: {lines[-1]}" if lines else killed
