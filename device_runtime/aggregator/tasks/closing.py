"""The ways to close a round, besides its deadline: each is a class, and a task has one of them.

Files, flags and messages have flat keys (`wait_for`, `buffer_size`, `deadline_quantile`, ..), which
`Task.closing` reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class AllDevices:
    """When every device that was asked has answered."""

    counts_late: ClassVar[bool] = False


@dataclass(frozen=True)
class FastDevices:
    """When the fast devices are done (`pace.closing_s`); the others' updates count late."""

    counts_late: ClassVar[bool] = True


@dataclass(frozen=True)
class FullBuffer:
    """When `size` devices have contributed, to whatever round (FedBuff: Nguyen et al. 2022)."""

    size: int
    counts_late: ClassVar[bool] = True


@dataclass(frozen=True)
class LearntDeadline:
    """When every device has answered; deadlines are learnt from the last rounds.

    A deadline is the `quantile` of their durations times `margin`, for devices that get slower, and at least
    `least_s`. `quantile`: share of devices whose work is to fit.
    """

    quantile: float
    margin: float = 1.5
    least_s: float = 1.0
    counts_late: ClassVar[bool] = False


Closing = AllDevices | FastDevices | FullBuffer | LearntDeadline
