"""With what number `device-runtime serve` ends, and which error has which: the one place where this stands.

0 and 130 need nobody; after 3, 4, 5 and 7 the same command may be tried again; 2, 6 and 8 need a person
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
    """An error that nobody expected, here or in a worker: a traceback stands on stderr. Please report it."""
    SETTINGS = 2
    """Flags, server file, task file or bundle that cannot be meant; the message names the key."""
    BROKER = 3
    """No broker answers, it refuses us, or our own could not be started."""
    FOLDER = 4
    """The run folder is in use, another task's, damaged, or its disk does not do as it is told."""
    ADDRESS = 5
    """The address for HTTP cannot be listened on."""
    MISSING = 6
    """Something is not installed; the message says what to install."""
    DATABASE = 7
    """PostgreSQL does not answer, refuses us, or was away for too long."""
    FRUITLESS = 8
    """Deadline after deadline no device contributed to a round; the message says why not."""
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
    """The number for an error that has a text for people; a worker's is that of what it met."""
    if isinstance(error, WorkerError):
        return error.code
    if isinstance(error, ModuleNotFoundError):
        return Exit.MISSING
    return next((code for kind, code in _OF if isinstance(error, kind)), Exit.SETTINGS)
