"""What can go wrong on the device. Each text is one line and says what, where, and what to do."""

from __future__ import annotations

import msgspec


class DeviceError(Exception):
    """Anything that `device_runtime` raises on purpose."""


class OutOfMemory(DeviceError):
    """Work that would exceed, or has exceeded, the memory this device may use. Nothing was started."""


class StaleBase(DeviceError):
    """The base model, after its log was replayed, is not the aggregator's. It is fetched anew."""


class UnusableBase(DeviceError):
    """The base model of an offer cannot be made from what it names, from its checkpoint on."""


class LeftOut(DeviceError):
    """What is wrong with one round, and does not concern the next."""


class RoundOver(DeviceError):
    """The round closed while its work stood still."""


class WorkDied(DeviceError):
    """The process that did the work has ended, and not because it was told to."""


class WorkStopped(DeviceError):
    """The device was told to stop while it trained: what it was at is given up."""


class PolicyError(DeviceError):
    """A rule of a device's owner that cannot be meant, or a device file that cannot be read."""


class InUse(DeviceError):
    """Another process is this device already."""


class NoDevice(DeviceError):
    """There is no such device here, or more than one."""


class InstallError(DeviceError):
    """A service that cannot be installed here, a device that cannot be removed, wheels that cannot be had."""


class WorkerDeath(msgspec.Struct, frozen=True):
    """A form of an update (its label) at which the process that worked on it ended, and how it did.

    `memory`: for want of memory, as far as can be told.
    """

    label: str
    why: str
    memory: bool
