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
from .link_timing import packet_bytes
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
        self._make_room(branch)
        return None

    def _whole(self, branch: str, sha: str, label: str, whole: bytes) -> tuple[str, bytes] | None:
        if label.isdecimal():
            return f"{branch}/block/{sha}/{label}", whole  # the receiver checks the hash of the blob
        return (f"{branch}/{label}", whole) if hashlib.sha256(whole).hexdigest() == sha else None

    def _drop(self, key: tuple[str, str]) -> None:
        if (message := self._open.pop(key, None)) is not None:
            self._bytes -= message.size

    def _make_room(self, branch: str) -> None:
        keys = [key for key in self._open if key[0] == branch]
        for key in keys[: max(0, len(keys) - MOST_OPEN)]:
            self._drop(key)
        while self._bytes > MOST_BYTES:
            self._drop(next(iter(self._open)))
