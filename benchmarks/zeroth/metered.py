"""A device's connection to its broker, with every MQTT packet weighed; and cut where it is to be."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

TYPES = {
    1: "CONNECT", 2: "CONNECT", 14: "CONNECT", 4: "PUBACK", 8: "SUBSCRIBE", 9: "SUBSCRIBE",
    12: "PING", 13: "PING",
}  # fmt: skip
"""By the number in a packet's first byte; an answer counts with what it answers."""
SAID = {
    "c": "short contribution", "n": "next round", "task": "offer", "get": "get or block",
    "block": "get or block",
}  # fmt: skip
"""By the last part of a topic, where that is no word."""


class Packets:
    """Whole packets out of a stream; weighs each by what it is."""

    def __init__(self, weigh: Counter[str], way: str) -> None:
        self._weigh, self._way = weigh, way
        self._bytes = bytearray()

    def feed(self, data: bytes) -> None:
        self._bytes += data
        while (end := self._end()) is not None:
            packet = bytes(self._bytes[:end])
            del self._bytes[:end]
            self._weigh[f"{what(packet)} {self._way}"] += len(packet)

    def _end(self) -> int | None:
        length = 0
        for place in range(1, min(5, len(self._bytes))):
            length |= (self._bytes[place] & 0x7F) << 7 * (place - 1)
            if self._bytes[place] < 0x80:
                whole = place + 1 + length
                return whole if whole <= len(self._bytes) else None
        return None


def what(packet: bytes) -> str:
    """Of a PUBLISH: the message."""
    kind = packet[0] >> 4
    if kind != 3:
        return TYPES.get(kind, f"type {kind}")
    start = 2
    while packet[start - 1] >= 0x80:
        start += 1
    end = start + 2 + int.from_bytes(packet[start : start + 2], "big")
    acknowledged = packet[0] & 0x06
    topic, payload = packet[start + 2 : end].decode(), packet[end + (2 if acknowledged else 0) :]
    parts = topic.split("/")
    if parts[2] == "all":
        return "next round" if payload and payload[0] < 0x80 else "offer to all"
    return SAID.get(parts[5], parts[5])


class Meter:
    """Listens at `port` on this machine, and hands on to the broker at `behind`; `bytes` by message."""

    def __init__(self, behind: int) -> None:
        self.bytes: Counter[str] = Counter()
        self._behind = behind
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._cut = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def total(self) -> int:
        return sum(self.bytes.values())

    def cut(self) -> None:
        """Nobody gets through until `mend`."""
        self._cut.set()
        self._close()

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        self._listening.close()
        self._close()

    def _close(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                device, _ = self._listening.accept()
                if self._cut.is_set():
                    device.close()
                    continue
                broker = socket.create_connection(("127.0.0.1", self._behind))
                self._open += [device, broker]
                for side in (device, broker):
                    side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pair, way in (((device, broker), "up"), ((broker, device), "down")):
                    threading.Thread(target=self._hand_on, args=(*pair, way), daemon=True).start()

    def _hand_on(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        packets = Packets(self.bytes, way)
        with suppress(OSError):
            while data := source.recv(65536):
                packets.feed(data)
                sink.sendall(data)
        for side in (source, sink):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
