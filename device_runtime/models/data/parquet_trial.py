"""Reads a Parquet file in a process of its own first: a damaged one may end the process that reads it.

arro3 is written in Rust. What it does not expect in a file is a panic, and some panics end the process,
whatever Python catches.
"""

from __future__ import annotations

import os
import subprocess
from functools import lru_cache
from pathlib import Path

from device_runtime.child_python import python_command

from .units import Refused

PROGRAM = """
import sys
from arro3.io import read_parquet
try:
    for batch in read_parquet(sys.argv[1]):
        pass
except BaseException as error:
    print(" ".join(str(error).split())[:200])
    sys.exit(3)
"""
LEAST_S, BYTES_A_S = 60.0, 1e6
"""The trial may take so long, and a second more for so many bytes."""
KEPT = 64
"""Files whose trial is remembered, by size and time of change."""


def try_parquet(path: Path) -> None:
    """Raises Refused for a file that cannot be read to its end, OSError if there is none."""
    about = path.stat()
    if why := _trial(os.fspath(path.absolute()), about.st_size, about.st_mtime_ns):
        raise Refused("not a .parquet file", why)


@lru_cache(KEPT)
def _trial(path: str, size: int, changed_ns: int) -> str:
    """Why the file cannot be read; empty if it can."""
    try:
        ended = subprocess.run(
            python_command(PROGRAM, path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LEAST_S + size / BYTES_A_S,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"reading it takes more than {LEAST_S + size / BYTES_A_S:.0f} s"
    if not ended.returncode:
        return ""
    return ended.stdout.strip() or "it is damaged: the library that reads it ends its process"
