"""Runs a peer as a process, and samples the memory of it and of all its children."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

EVERY_S = 0.05
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Peak:
    """Of a process tree, in bytes. `pss` counts a page that n processes share as one n-th in each, so that
    the sum is what they hold together; `rss` counts it whole in each."""

    pss: int = 0
    rss: int = 0

    def larger(self, other: Peak) -> Peak:
        return Peak(max(self.pss, other.pss), max(self.rss, other.rss))


def run(command: Sequence[str], log: Path, limit_s: float, sampled: bool = False) -> Peak:
    """Waits for the process. Its output goes to `log`. Raises RuntimeError where it fails or takes longer.

    Sampling takes some processor time: times of a sampled run are not to be used.
    """
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    began, peak = time.monotonic(), Peak()
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        try:
            while process.poll() is None:
                if time.monotonic() - began > limit_s:
                    raise RuntimeError(f"{log.stem} took longer than {limit_s:g} s; see {log}")
                if sampled:
                    peak = peak.larger(_memory(process.pid))
                time.sleep(EVERY_S)
        finally:
            _end(process)
    if process.returncode:
        raise RuntimeError(f"{log.stem} ended with {process.returncode}; see {log}")
    return peak


def _memory(pid: int) -> Peak:
    pss = rss = 0
    for process in _tree(pid):
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            info = process.memory_full_info()
            pss, rss = pss + info.pss, rss + info.rss
    return Peak(pss, rss)


def _tree(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started."""
    if process.poll() is None:
        for member in _tree(process.pid):
            with suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
