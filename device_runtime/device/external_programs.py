"""Runs another program and returns what it printed."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress


def run_program(
    words: Sequence[str], timeout_s: float, folder: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`, without input, and return its exit code and output.

    Raises OSError or ValueError if it cannot be run, subprocess.TimeoutExpired if it does not end in time:
    all processes that it started are ended with it.
    """
    with subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, wrong = process.communicate(timeout=timeout_s)
        except BaseException:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(list(words), process.returncode, out, wrong)
