"""Gives each expected error of `device-runtime serve` its exit code.

0 and 130 need no action; after 3, 4, 5 and 7 the same command may be tried again; 2, 6 and 8 need a person
first.
"""

from __future__ import annotations

from device_runtime.aggregator.errors import (
    AddressError,
    DatabaseError,
    MissingExtra,
    NoContributions,
    RunFolderError,
    WorkerError,
)
from device_runtime.broker.errors import BlobError, BrokerRefused, BrokerStartError, BrokerUnreachable
from device_runtime.service_process import Exit
from device_runtime.system_errors import NO_HOME, is_of_disk, shortage

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
    if code := next((code for kind, code in _OF if isinstance(error, kind)), None):
        return code
    if is_of_disk(error):
        return Exit.FOLDER
    lacks = isinstance(error, (MemoryError, RuntimeError)) and shortage(error) not in (None, NO_HOME)
    return Exit.MISTAKE if lacks else Exit.SETTINGS
