"""Who is told of a simulated run as it goes: files, a progress bar, what gathers local models."""

from __future__ import annotations

from typing import Protocol

from device_runtime.strategies.training.device_half import Contribution

from .executors.job import Job
from .records import Ask, RoundLine


class Watch(Protocol):
    """Called in the order of virtual time. What it raises ends the run."""

    def asked(self, ask: Ask) -> None:
        """A device's part in a round is over."""

    def trained(self, job: Job, made: Contribution) -> None:
        """An update that counts; its tensors are valid during the call only."""

    def closed(self, line: RoundLine) -> None:
        """A round is over."""


class Nobody:
    """A watch that does not look."""

    def asked(self, ask: Ask) -> None:
        pass

    def trained(self, job: Job, made: Contribution) -> None:
        pass

    def closed(self, line: RoundLine) -> None:
        pass
