"""What can go wrong here. Each text is one line and says what, where, and what to do."""

from __future__ import annotations


class BrokerError(Exception):
    """Anything that `broker` raises on purpose."""


class BlobError(BrokerError):
    """A blob that is missing, damaged or too large, or a disk that cannot hold it."""


class NoRoom(BlobError):
    """A blob is not fetched, for the disk or what may be taken of it has no room."""


class BlockError(BlobError):
    """One block that does not fit its blob: wrong length, or a number out of range. Asking again may help."""


class UrlError(BrokerError, ValueError):
    """A broker URL that cannot be used, or that would send a password in the clear."""


class BrokerUnreachable(BrokerError):
    """Nothing answers at the address, or not as an MQTT broker. Trying again later may help."""


class BrokerRefused(BrokerError):
    """The broker answered, and said no: wrong password, or a topic that is not ours."""


class BrokerStartError(BrokerError):
    """A broker of our own that could not be started."""
