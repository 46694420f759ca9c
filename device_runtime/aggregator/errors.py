"""What can go wrong here. Each text is one line and says what, where, and what to do."""

from __future__ import annotations


class AggregatorError(Exception):
    """Anything that `aggregator` raises on purpose. The command line prints it as one line, exit status 2."""


class TaskError(AggregatorError, ValueError):
    """Task settings that cannot be meant, or data of the task that cannot be read."""


class RunFolderError(AggregatorError):
    """A run folder that belongs to another task, is in use, damaged, or cannot be written."""


class RunInUse(RunFolderError):
    """Another process has the run folder open."""


class DatabaseError(AggregatorError):
    """A database server that does not answer, refuses us, or was lost for too long."""


class WorkerError(AggregatorError):
    """A worker that cannot begin to work. `code` is the exit status of its own error (`exits`)."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class NoContributions(AggregatorError):
    """A run that was given up: deadline after deadline no device contributed; the text says why not."""


class RollbackError(AggregatorError):
    """A version of the model that cannot be gone back to."""


class UpdateRefused(AggregatorError):
    """A contribution that is not believed; the text goes to the device in its receipt."""


class ConfigError(AggregatorError, ValueError):
    """Settings of the service that cannot be meant; the text names the file and the key."""


class AddressError(AggregatorError):
    """An address for HTTP that cannot be listened on."""


class MissingExtra(AggregatorError):
    """Something is asked for that is not installed; the text says what to install."""
