"""Learns how large a packet a broker takes: from what it says, or from where it closes the connection."""

from __future__ import annotations

from collections import OrderedDict

SMALLEST = 1024
"""Bytes. A broker that takes no packet of this size is of no use: messages about blobs would not fit."""
CLOSINGS = 2
"""Connections that must end in the same packet before smaller ones are tried."""


class DroppedBlocks:
    """Notices a broker that acknowledges messages and drops them, as MQTT 3.1.1 lets it do with large ones.

    A block that is asked for again and again, though the broker acknowledged it each time, may be too large.
    It is not where a block before it has arrived: receivers ask for the first blocks that they miss, and all
    blocks but the last are equally long. Then the broker drops what its queue does not hold.
    """

    TIMES, WITHIN_S, LEAST_BYTES, MOST = 3, 120.0, 8 * 1024, 512

    def __init__(self) -> None:
        self._first: OrderedDict[str, tuple[int, list[float]]] = OrderedDict()
        """Of each blob its first block that was sent, and of each topic its content: when it was sent."""

    def suspicious(self, topic: str, payload: bytes, now: float) -> bool:
        """Note that a message is sent. Returns whether it has been sent too often to have arrived."""
        if len(payload) < self.LEAST_BYTES:
            return False
        if "/block/" in topic:
            key, _, index = topic.rpartition("/")
            identity = int(index)
        elif topic.endswith("/contribution"):
            key, identity = topic, hash(payload)
        else:
            return False
        first, sent_at = self._first.pop(key, (identity, []))
        if identity < first or (identity > first and key == topic):
            first, sent_at = identity, []
        if identity == first:
            sent_at = [at for at in sent_at if now - at < self.WITHIN_S] + [now]
        suspicious = identity == first and len(sent_at) >= self.TIMES
        self._first[key] = first, [] if suspicious else sent_at
        if len(self._first) > self.MOST:
            self._first.popitem(last=False)
        return suspicious


class PacketLimit:
    """The most bytes of a whole packet. `most`: None while no limit is known.

    MQTT 5 brokers state their limit at each connection. Others close the connection in a packet that is too
    large: if CLOSINGS connections end while a packet is on its way that is larger than any that the broker
    acknowledged, the limit becomes the largest power of two within three quarters of it. `too_large`: the
    smallest size that is known to be too large; a message that cannot be cut is tried below it. `hopeless`:
    the size of a packet that is too large, while none smaller is of use.
    """

    def __init__(self) -> None:
        self.most: int | None = None
        self._stated: int | None = None
        self.too_large: int | None = None
        self.hopeless = 0
        self._acknowledged = 0
        self._suspect, self._closings = 0, 0

    def stated(self, size: int | None) -> None:
        """Note what the broker states (MQTT 5); None: nothing."""
        if size is not None:
            self.most, self.too_large = size, size + 1
        elif self._stated is not None:
            self.most = self.too_large = None
        self._stated = size

    def acknowledged(self, size: int) -> None:
        """Note a packet that the broker acknowledged."""
        self._acknowledged = max(self._acknowledged, size)
        if size >= self._suspect:
            self._suspect = self._closings = 0

    def suspicious(self, largest: int) -> bool:
        """Whether a connection that ended with this packet as its largest may have ended because of it."""
        return largest > max(self._acknowledged, SMALLEST // 2)

    def closed(self, largest: int) -> bool:
        """Note a connection that ended; `largest`: bytes of the largest packet that it had begun to send.

        Returns whether smaller packets are to be tried.
        """
        if not self.suspicious(largest):
            self._suspect = self._closings = 0
            return False
        self._closings = self._closings + 1 if largest == self._suspect else 1
        self._suspect = largest
        return self._closings >= CLOSINGS and self.refused(largest)

    def refused(self, size: int) -> bool:
        """Note that a packet of this size is too large. Returns whether there is a smaller one to try."""
        self._suspect = self._closings = 0
        self.too_large = size if self.too_large is None else min(self.too_large, size)
        self._acknowledged = min(self._acknowledged, size - 1)
        smaller = 1 << (max(3 * size // 4, 1).bit_length() - 1)
        if smaller < SMALLEST:
            self.hopeless = size
            return False
        self.most = smaller if self.most is None else min(self.most, smaller)
        return True
