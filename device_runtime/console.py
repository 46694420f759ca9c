"""What a command writes beside its own output."""

from __future__ import annotations

import logging
import sys


def log_to_stderr() -> None:
    """What this package has to say, and the warnings of others."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("device_runtime").setLevel(logging.INFO)
