"""Exit codes of `device-runtime serve`, and the errors that lead to them.

0 and 130 need no action; after 3, 4, 5 and 7 the same command may be tried again; 2, 6 and 8 need a person
first.
"""

from __future__ import annotations

from enum import IntEnum

from device_runtime.aggregator.errors import (
    AddressError,
    DatabaseError,
    MissingExtra,
    NoContributions,
    RunFolderError,
    WorkerError,
)
from device_runtime.broker.errors import BlobError, BrokerRefused, BrokerStartError, BrokerUnreachable


class Exit(IntEnum):
    """Exit status of the service; `docs/service.md` and the systemd unit say the same."""

    DONE = 0
    """The task is finished, or the service was told to stop (SIGTERM, SIGINT) and did."""
    MISTAKE = 1
    """An unexpected error, here or in a worker, with a traceback on stderr. Please report it."""
    SETTINGS = 2
    """Flags, server file, task file or bundle are invalid; the message names the key."""
    BROKER = 3
    """No broker answers, it refuses us, or our own could not be started."""
    FOLDER = 4
    """The run folder is in use, another task's, or damaged, or its disk fails."""
    ADDRESS = 5
    """The service cannot listen on its HTTP address."""
    MISSING = 6
    """A package is not installed; the message says what to install."""
    DATABASE = 7
    """PostgreSQL does not answer, refuses us, or was away for too long."""
    FRUITLESS = 8
    """No device contributed to a round in many deadlines in a row; the message says why."""
    INTERRUPTED = 130
    """Ctrl-C before the service ran."""


_OF: tuple[tuple[type[Exception], Exit], ...] = (
    (BrokerUnreachable, Exit.BROKER),
    (BrokerRefused, Exit.BROKER),
    (BrokerStartError, Exit.BROKER),
    (BlobError, Exit.FOLDER),
    (RunFolderError, Exit.FOLDER),
    (DatabaseError, Exit.DATABASE),
    (AddressError, Exit.ADDRESS),
    (MissingExtra, Exit.MISSING),
    (NoContributions, Exit.FRUITLESS),
)


def exit_code(error: Exception) -> int:
    """The exit code of an expected error; for a WorkerError that of the worker's own error."""
    if isinstance(error, WorkerError):
        return error.code
    if isinstance(error, ModuleNotFoundError):
        return Exit.MISSING
    return next((code for kind, code in _OF if isinstance(error, kind)), Exit.SETTINGS)
