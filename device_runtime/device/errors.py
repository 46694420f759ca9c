"""Errors of the device. Each text is one line and says what went wrong, where, and what to do."""

from __future__ import annotations

import msgspec


class DeviceError(Exception):
    """Base class of the errors that `client` raises."""


class OutOfMemory(DeviceError):
    """Work would exceed the memory this device may use and was not started, or has exceeded it."""


class StaleBase(DeviceError):
    """The base model made by replaying steps is not the aggregator's. It is fetched anew."""


class UnusableBase(DeviceError):
    """The base model cannot be made from what the offer names, even from its checkpoint."""


class RoundLeftOut(DeviceError):
    """One round cannot be worked on; the next one may."""


class RoundRested(RoundLeftOut):
    """The aggregator wants nothing in this round of what the device would send."""


class RoundOver(DeviceError):
    """The round closed while its work was paused."""


class WorkDied(DeviceError):
    """The worker process has ended, without being told to.

    `killed`: by the kernel, as for lack of memory.
    """

    def __init__(self, why: str, killed: bool = False) -> None:
        super().__init__(why)
        self.killed = killed


class WorkStopped(DeviceError):
    """The device was told to stop while it trained: the work in progress is given up."""


class PolicyError(DeviceError):
    """An owner's rule that is not valid, or a device file that cannot be read."""


class InUse(DeviceError):
    """The device runs already, in another process or in this one."""


class NoDevice(DeviceError):
    """There is no such device here, or more than one."""


class InstallError(DeviceError):
    """A service that cannot be installed here, a device that cannot be removed, wheels that cannot be had."""


class WorkerDeath(msgspec.Struct, frozen=True):
    """The form of an update (its label) during which the worker process ended, and why.

    `memory`: the process ended for lack of memory, as far as known.
    """

    label: str
    why: str
    memory: bool
