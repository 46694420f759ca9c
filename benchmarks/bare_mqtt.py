"""MQTT 3.1.1 by hand, for load: a thousandth of a client library, so that what is measured is not the load.

A `Fleet` holds any number of connections in one thread; each may speak for many devices, as an open broker
lets it. Packets are made of bytes once and sent as they are.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

PUBACK = b"\x40\x02"


def text(value: str) -> bytes:
    raw = value.encode()
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, body: bytes) -> bytes:
    """Fixed header and body."""
    length, size = bytearray(), len(body)
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (0x80 if size else 0))
        if not size:
            return bytes((first,)) + bytes(length) + body


def connect(name: str, keepalive_s: int = 60) -> bytes:
    return packet(0x10, text("MQTT") + b"\x04\x02" + keepalive_s.to_bytes(2, "big") + text(name))


def subscribe(topic: str) -> bytes:
    return packet(0x82, b"\x00\x01" + text(topic) + b"\x01")


def publish(topic: str, payload: bytes, mid: int) -> bytes:
    """With QoS 1; `mid` from 1 to 65535."""
    return packet(0x32, text(topic) + mid.to_bytes(2, "big") + payload)


class Connection:
    """One socket: what is to be sent waits in `out`, whole packets come out of `packets`."""

    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.out = bytearray()
        self._in = bytearray()
        self._mid = 0

    def next_mid(self) -> int:
        self._mid = self._mid % 65535 + 1
        return self._mid

    def flush(self) -> None:
        with suppress(BlockingIOError):
            while self.out:
                del self.out[: self.socket.send(self.out)]

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """(first byte, body) of each whole packet. Raises ConnectionError when the broker hung up."""
        with suppress(BlockingIOError):
            data = self.socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the broker hung up")
            self._in += data
        start, have = 0, self._in
        while len(have) - start >= 2:
            size, shift, at = 0, 0, start + 1
            while at < len(have):
                size |= (have[at] & 0x7F) << shift
                shift, at = shift + 7, at + 1
                if not have[at - 1] & 0x80:
                    break
            else:
                break
            if len(have) - at < size:
                break
            yield have[start], bytes(have[at : at + size])
            start = at + size
        del have[:start]


Heard = Callable[[Connection, str, bytes], None]


class Fleet:
    """Connections that are served together by `turn`; `heard(connection, topic, payload)` gets messages.

    `acknowledged` counts the PUBACKs of the broker. Messages with QoS 1 are acknowledged at once.
    """

    def __init__(self, host: str, port: int, on_message: Heard) -> None:
        self.acknowledged = 0
        self._where = (host, port)
        self._on_message = on_message
        self._selector = selectors.DefaultSelector()
        self.connections: list[Connection] = []

    def add(self, name: str, *topics: str, keepalive_s: int = 60) -> Connection:
        connection = Connection(*self._where)
        connection.out += connect(name, keepalive_s)
        for topic in topics:
            connection.out += subscribe(topic)
        self.connections.append(connection)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.flush()
        return connection

    def turn(self, timeout_s: float = 0.01) -> None:
        """Take what has come, send what waits."""
        for key, _ in self._selector.select(timeout_s):
            self._read(key.data)
        for connection in self.connections:
            if connection.out:
                connection.flush()

    def until(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Turn until it is true. Raises TimeoutError."""
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not within {timeout_s:g} s")
            self.turn()

    def close(self) -> None:
        for connection in self.connections:
            connection.socket.close()
        self._selector.close()

    def _read(self, connection: Connection) -> None:
        for first, body in connection.packets():
            kind = first & 0xF0
            if kind == 0x40:
                self.acknowledged += 1
            elif kind == 0x30:
                size = int.from_bytes(body[:2], "big")
                topic, at = body[2 : 2 + size].decode(), 2 + size
                if first & 0x06:
                    connection.out += PUBACK + body[at : at + 2]
                    at += 2
                self._on_message(connection, topic, body[at:])
            elif kind == 0x20 and body[1]:
                raise ConnectionError(f"the broker refused a connection with code {body[1]}")
