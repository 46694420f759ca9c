"""What a program of this machine prints."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from device_runtime.client.policy.external_programs import asked

from .meter import MeterError

TIMEOUT_S = 20.0


def output(words: Sequence[str], folder: str | None = None) -> str:
    """Its standard output, run in `folder` (None: where we are).

    Raises MeterError where it does not run, fails, or does not end in time.
    """
    shown = " ".join(words)
    try:
        ended = asked(words, TIMEOUT_S, folder)
    except subprocess.TimeoutExpired:
        raise MeterError(f"{shown}: no answer in {TIMEOUT_S:.0f} s") from None
    except (OSError, ValueError) as error:
        raise MeterError(f"{shown}: {error}") from None
    if ended.returncode:
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["nothing said"]
        raise MeterError(f"{shown} ended with {ended.returncode}: {said[-1]}")
    return ended.stdout
