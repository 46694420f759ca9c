"""Errors of the broker package. Each text is one line: what failed, where, and what to do."""

from __future__ import annotations


class BrokerError(Exception):
    """Base class of the errors that `broker` raises."""


class BlobError(BrokerError):
    """A blob that is missing, damaged or too large, or a disk that cannot hold it."""


class NoRoom(BlobError):
    """A blob is not fetched, because the disk or the share of it for blobs is full."""


class DiskError(BlobError):
    """The disk of a blob is full, read-only or fails. Trying again later may help."""


class BlockError(BlobError):
    """One block that does not fit its blob: wrong length, or a number out of range. Asking again may help."""


class UrlError(BrokerError, ValueError):
    """A broker URL that is invalid, or would send a password unencrypted."""


class BrokerUnreachable(BrokerError):
    """Nothing answers at the address, or not as an MQTT broker. Trying again later may help."""


class BrokerSilent(BrokerUnreachable):
    """A step of connecting ran out of time. With more time it may succeed."""


class BrokerBusy(BrokerUnreachable):
    """The broker refuses for a reason that passes: it is busy, starting, or limits connections."""


class BrokerRefused(BrokerError):
    """The broker refused: wrong password, or a topic that this client may not use."""


class BrokerStartError(BrokerError):
    """A broker that this package could not start."""
