"""Errors of the aggregator, and the exit code that `device-runtime serve` gives each expected error.

Each message is one line that says what went wrong, where, and what to do.

Exit codes 0 and 130 need no action; after 3, 4, 5 and 7 the same command may be tried again; 2, 6 and 8
need a person first.
"""

from __future__ import annotations

from device_runtime.broker.errors import BlobError, BrokerRefused, BrokerStartError, BrokerUnreachable
from device_runtime.service_process import Exit
from device_runtime.system_errors import NO_HOME, is_of_disk, shortage


class AggregatorError(Exception):
    """Base class of the aggregator's errors. The command line prints one as a line, with exit status 2."""


class TaskError(AggregatorError, ValueError):
    """Task settings are invalid, or data of the task cannot be read."""


class RunFolderError(AggregatorError):
    """The run folder belongs to another task, is in use or damaged, or cannot be written."""


class RunInUse(RunFolderError):
    """Another process, or another thread of this one, has the run folder open."""


class DatabaseError(AggregatorError):
    """The database server does not answer, refuses us, or was away for too long."""


class WorkerError(AggregatorError):
    """A worker process cannot start. `code` is the exit status of its error (`exit_code`)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class NoContributions(AggregatorError):
    """The run was abandoned; the text says why.

    No device contributed, or no mask helper answered, in many deadlines in a row; or the privacy budget of
    its noise is spent.
    """


class RollbackError(AggregatorError):
    """The run cannot roll back to this version of the model."""


class UpdateRefused(AggregatorError):
    """A contribution failed a check; the text goes to the device in its receipt."""


class ConfigError(AggregatorError, ValueError):
    """Settings of the service are invalid; the text names the file and the key."""


class AddressError(AggregatorError):
    """The service cannot listen on its HTTP address."""


class MissingExtra(AggregatorError):
    """A package is needed and not installed; the text says what to install."""


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
