"""What a worker is told on its stdin, and says on its stdout: structs with their length before them."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TypeVar

import msgspec

from device_runtime.aggregator.serving.config import LogSection
from device_runtime.broker.wire.url import BrokerUrl

T = TypeVar("T")

_LENGTH = 4
"""Bytes."""


class Order(msgspec.Struct, frozen=True):
    """What a worker is for: contributions that come by `topic`, for the runs in `folders`."""

    broker: BrokerUrl
    topic: str
    folders: tuple[Path, ...]
    database: str
    log: LogSection


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The broker has taken its subscription."""


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """It cannot work, and ends; `code` as in WorkerError."""

    why: str
    code: int


class Looked(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A contribution has come; `refusal` as in `check_process.Checked`."""

    topic: str
    payload: bytes
    refusal: str | None


Word = Ready | Failed | Looked


def write(stream: IO[bytes], struct: object) -> None:
    """It is on its way after the stream's next flush. Lets OSError through."""
    content = msgspec.msgpack.encode(struct, enc_hook=str)  # paths
    stream.write(len(content).to_bytes(_LENGTH, "big") + content)


def read(stream: IO[bytes], kind: type[T]) -> T | None:
    """The next; None at the end, also where that comes in the middle of one."""
    length = stream.read(_LENGTH)
    if len(length) < _LENGTH:
        return None
    size = int.from_bytes(length, "big")
    content = stream.read(size)
    if len(content) < size:
        return None
    return msgspec.msgpack.decode(content, type=kind, dec_hook=lambda path, value: path(value))
