"""Between a device and the process that works for it: typed messages, over a socket pair.

Each is MessagePack, with its length in four bytes before it.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from .rpc_calls import Asked, Said

LENGTH = struct.Struct("!I")
CHUNK = 64 * 1024
M = TypeVar("M")


class Gone(Exception):
    """The other side has ended."""


class Crossing(Generic[M]):
    """One end. `kind` is the union of what comes in."""

    def __init__(self, end: socket.socket, kind: Any) -> None:
        self._end = end
        self._encoder = msgspec.msgpack.Encoder(enc_hook=str)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind, dec_hook=_path)
        self._came = bytearray()
        self._spoke_s = time.monotonic()

    @property
    def quiet_s(self) -> float:
        """Seconds since anything was said, by either side; 0 where something waits to be heard."""
        return 0.0 if self._came or self._readable(0.0) else time.monotonic() - self._spoke_s

    def say(self, message: Asked | Said) -> None:
        """Raises Gone."""
        data = self._encoder.encode(message)
        self._spoke_s = time.monotonic()
        try:
            self._end.sendall(LENGTH.pack(len(data)) + data)
        except OSError:
            raise Gone from None

    def hear(self, timeout_s: float | None = None) -> M | None:
        """The next message; None where none has come in time. Raises Gone."""
        while (message := self._whole()) is None:
            if not self._readable(timeout_s):
                return None
            try:
                came = self._end.recv(CHUNK)
            except OSError:
                raise Gone from None
            if not came:
                raise Gone
            self._came += came
        self._spoke_s = time.monotonic()
        return message

    def close(self) -> None:
        """The other side hears of it."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)
        self._end.close()

    def _readable(self, timeout_s: float | None) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))

    def _whole(self) -> M | None:
        if len(self._came) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._came)
        end = LENGTH.size + length
        if len(self._came) < end:
            return None
        data = bytes(self._came[LENGTH.size : end])
        del self._came[:end]
        return self._decoder.decode(data)


def _path(_kind: type, given: object) -> Path:
    """The only type here that msgspec has no form for; it is written as text."""
    return Path(str(given))
