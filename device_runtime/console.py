"""Logging of commands to stderr."""

from __future__ import annotations

import logging
import sys


def log_to_stderr() -> None:
    """Log this package's messages from INFO on, and the warnings of others."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("device_runtime").setLevel(logging.INFO)
