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
    """What a program said, with nothing to read and nobody to ask back. `folder`: where it runs.

    Raises OSError, ValueError for one that cannot be run, subprocess.TimeoutExpired for one that does not end
    in time: all that it started is ended with it.
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
