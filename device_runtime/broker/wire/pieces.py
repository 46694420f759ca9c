"""Cuts a message that is larger than the broker's packets into pieces, and joins them again.

A piece travels on `fl/v1/d/{id}/{up|dn}/block/{sha}/{label}.{k}.{n}`, which every access list for blocks lets
pass. It is piece k of n of block `label` of the blob {sha}, or of the message that goes on the leaf `label`
(hello, contribution, ...), whose sha256 is {sha}. The receiving link joins them, so nothing else knows of
pieces.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field

from . import topics
from .link_events import packet_bytes
from .messages import MESSAGE_LIMIT

LEAVES = ("hello", "plan", "contribution", "c", "get", "sum", "task", "n", "receipt")
"""Leaves whose messages may be cut; retained ones may not."""
MOST_PIECES = 512
MOST_OPEN = 32
"""Messages of one device that may be incomplete at a time; the oldest is dropped."""
MOST_BYTES = 64 * 1024**2
"""Bytes of all incomplete messages; the oldest are dropped."""

_LABEL = re.compile(r"([0-9]{1,8}|[a-z]{1,16})\.([0-9]{1,3})\.([0-9]{1,3})")


class TooLarge(ValueError):
    """A message that cannot be cut into packets that the broker takes; it would be one of `size` bytes."""

    def __init__(self, size: int, topic: str, limit: int) -> None:
        super().__init__(f"a packet of {size} bytes on {topic}; the broker takes {limit} bytes at most")
        self.size = size


def cut(
    topic: str, payload: bytes, qos: int, limit: int, mqtt5: bool = False, whole: bool = False
) -> list[tuple[str, bytes]]:
    """The (topic, payload) of packets of at most `limit` bytes: the message itself, or its pieces.

    `whole`: it must not be cut. Raises TooLarge.
    """
    size = packet_bytes(topic, payload, qos, mqtt5)
    if size <= limit:
        return [(topic, payload)]
    parts = topic.split("/")
    if whole or not topic.startswith(f"{topics.ROOT}/d/") or len(parts) not in (6, 8):
        raise TooLarge(size, topic, limit)
    branch, leaf = "/".join(parts[:5]), parts[5]
    if len(parts) == 8 and leaf == "block" and parts[7].isdecimal():
        stem = f"{branch}/block/{parts[6]}/{parts[7]}"
    elif len(parts) == 6 and leaf in LEAVES:
        stem = f"{branch}/block/{hashlib.sha256(payload).hexdigest()}/{leaf}"
    else:
        raise TooLarge(size, topic, limit)
    room = limit - packet_bytes(f"{stem}.{MOST_PIECES}.{MOST_PIECES}", b"", qos, mqtt5) - 3  # longer length
    if room <= 0 or (count := -(-len(payload) // room)) > MOST_PIECES:
        raise TooLarge(size, topic, limit)
    each = -(-len(payload) // count)
    return [(f"{stem}.{k}.{count}", payload[k * each : (k + 1) * each]) for k in range(count)]


@dataclass
class _Open:
    """A message of which not all pieces are here."""

    count: int
    pieces: dict[int, bytes] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces.values()))


class PieceJoiner:
    """Joins the pieces that come in. What never becomes whole is dropped, oldest first."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], _Open] = OrderedDict()
        self._bytes = 0

    @staticmethod
    def is_piece(topic: str) -> bool:
        """Whether a message on this topic is a piece."""
        parts = topic.split("/")
        return len(parts) == 8 and parts[5] == "block" and _LABEL.fullmatch(parts[7]) is not None

    def take(self, topic: str, payload: bytes) -> tuple[str, bytes] | None:
        """Take a piece; returns the (topic, payload) of the whole message when this was its last one."""
        parts = topic.split("/")
        matched = _LABEL.fullmatch(parts[7])
        if matched is None:
            return None
        label, k, count = matched[1], int(matched[2]), int(matched[3])
        branch, stem = "/".join(parts[:5]), f"{parts[6]}/{label}"
        if not (k < count <= MOST_PIECES and (label.isdecimal() or label in LEAVES)):
            return None
        message = self._open.get((branch, stem))
        if message is None or message.count != count:
            self._drop((branch, stem))
            message = self._open[branch, stem] = _Open(count)
        self._bytes += len(payload) - len(message.pieces.get(k, b""))
        message.pieces[k] = payload
        self._open.move_to_end((branch, stem))
        if message.size > MESSAGE_LIMIT:
            self._drop((branch, stem))
        elif len(message.pieces) == count:
            whole = b"".join(message.pieces[number] for number in range(count))
            self._drop((branch, stem))
            return self._whole(branch, parts[6], label, whole)
        keys = [key for key in self._open if key[0] == branch]
        for key in keys[: max(0, len(keys) - MOST_OPEN)]:
            self._drop(key)
        while self._bytes > MOST_BYTES:
            self._drop(next(iter(self._open)))
        return None

    def _whole(self, branch: str, sha: str, label: str, whole: bytes) -> tuple[str, bytes] | None:
        if label.isdecimal():
            return f"{branch}/block/{sha}/{label}", whole  # the receiver checks the hash of the blob
        return (f"{branch}/{label}", whole) if hashlib.sha256(whole).hexdigest() == sha else None

    def _drop(self, key: tuple[str, str]) -> None:
        if (message := self._open.pop(key, None)) is not None:
            self._bytes -= message.size


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
