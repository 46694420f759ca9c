"""Errors of the aggregator.

Each message is one line that says what went wrong, where, and what to do.
"""

from __future__ import annotations


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
    """A worker process cannot start. `code` is the exit status of its error (`configuration.exit_codes`)."""

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
