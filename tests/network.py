"""A bad network in front of a broker: a proxy that delays, cuts, freezes, limits and counts; bad peers."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from device_runtime.broker.wire.url import BrokerUrl

Rule = Callable[[bool, str, bytes], list[tuple[str, bytes]] | None]
"""(up, topic, payload) of a message -> what goes on in its place: None for itself, [] for nothing."""


class Proxy:
    """Between clients and a broker. Understands MQTT 3.1.1 as far as its messages; `opaque`: passes bytes on.

    `rule` says what becomes of each message. One that is lost is acknowledged to its sender, as brokers do
    that drop it; copies go with QoS 0. `bytes_per_s` bounds what goes up, `delay_s` is added each way.
    packet_limit: a connection that sends a larger packet is closed. cut_after: each connection is reset after
    so many bytes up. busy: so many connections are refused first, as "server unavailable". refuses: every
    new connection is closed. drip_s: what comes down comes byte by byte, with this pause. `up` and `down`
    count the bytes from and to the clients. `port`: where it listens; 0: any.
    """

    def __init__(self, url: str, opaque: bool = False, port: int = 0) -> None:
        self.rule: Rule | None = None
        self.bytes_per_s: float | None = None
        self.delay_s = 0.0
        self.packet_limit: int | None = None
        self.cut_after: int | None = None
        self.drip_s = 0.0
        self.busy = 0
        self.refuses = False
        self.closed = False
        self.connections = self.up = self.down = 0
        self._opaque = opaque
        self._target = BrokerUrl.parse(url)
        self._pairs: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        self._server = socket.socket()
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)  # a slow link holds little
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.bind(("127.0.0.1", port))
        self._server.listen(600)
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self):
        return self._server.getsockname()[1]

    @property
    def url(self):
        scheme = str(self._target).partition("://")[0]
        return f"{scheme}://127.0.0.1:{self.port}{self._target.path}"

    def freeze(self):
        """From now on nothing passes through the connections that there are, and nobody is told."""
        for _, _, frozen in self._pairs:
            frozen.set()

    def cut(self):
        """End the connections that there are, as a reset does."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _reset(pair)
            pair[2].clear()  # its threads end

    def close(self):
        self.closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # or its thread would wait for ever
        self._server.close()
        self.cut()

    def _accept(self):
        while not self.closed:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            if self.refuses:
                client.close()
                continue
            if self.connections <= self.busy:
                with suppress(OSError):
                    client.recv(4096)
                    client.sendall(b"\x20\x02\x00\x03")
                    client.shutdown(socket.SHUT_RDWR)
                client.close()
                continue
            try:
                broker = socket.create_connection(("127.0.0.1", self._target.port), timeout=120)
            except OSError:
                client.close()
                continue
            for side in (client, broker):
                side.settimeout(None)
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, broker, threading.Event())
            self._pairs.append(pair)
            for up in (True, False):
                threading.Thread(target=self._pump, args=(pair, up), daemon=True).start()

    def _pump(self, pair, up):
        here, far_end, frozen = pair if up else (pair[1], pair[0], pair[2])
        have, total = b"", 0
        try:
            while data := here.recv(8192 if self.bytes_per_s or self.cut_after else 65536):
                while frozen.is_set():
                    if self.closed:
                        return
                    time.sleep(0.05)
                total += len(data)
                if up:
                    self.up += len(data)
                    if self.cut_after is not None and total >= self.cut_after:
                        with suppress(BlockingIOError):  # what has come over the wire counts, read or not
                            while left := here.recv(65536, socket.MSG_DONTWAIT):
                                self.up += len(left)
                        _reset(pair)
                        return
                if self.delay_s:
                    time.sleep(self.delay_s)
                if self._opaque:
                    self._send(far_end, data, up)
                    continue
                packets, have = _split(have + data)
                for first, body in packets:
                    for packet in self._changed(up, first, body, here):
                        self._send(far_end, packet, up)
                if up and self.packet_limit is not None and _length(have) > self.packet_limit:
                    return
        except OSError:
            pass
        finally:
            if not frozen.is_set():  # whoever is frozen hears nothing, not even of the end
                for side in pair[:2]:
                    with suppress(OSError):
                        side.shutdown(socket.SHUT_RDWR)

    def _send(self, far_end, packet, up):
        if not up:
            self.down += len(packet)
        if self.drip_s and not up:
            for number in packet:
                far_end.sendall(bytes((number,)))
                time.sleep(self.drip_s)
        elif not up or self.bytes_per_s is None:
            far_end.sendall(packet)
        else:
            piece = max(1, int(self.bytes_per_s / 20))
            for start in range(0, len(packet), piece):
                far_end.sendall(packet[start : start + piece])
                time.sleep(len(packet[start : start + piece]) / self.bytes_per_s)

    def _changed(self, up, first, body, here):
        if up and self.packet_limit is not None and len(packet := _packet(first, body)) > self.packet_limit:
            raise ConnectionError(f"{len(packet)} bytes")
        if first & 0xF0 != 0x30 or self.rule is None:
            return [_packet(first, body)]
        size = int.from_bytes(body[:2], "big")
        topic, rest = body[2 : 2 + size].decode(), body[2 + size :]
        mid, payload = (rest[:2], rest[2:]) if first & 0x06 else (b"", rest)
        instead = self.rule(up, topic, payload)
        if instead is None:
            return [_packet(first, body)]
        if not instead and mid:
            here.sendall(b"\x40\x02" + mid)
        return [
            _packet(first, _text(topic) + mid + payload)
            if number == 0
            else _packet(0x30, _text(topic) + payload)
            for number, (topic, payload) in enumerate(instead)
        ]


def _reset(pair):
    for side in pair[:2]:
        with suppress(OSError):
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.shutdown(socket.SHUT_RDWR)
        side.close()


def _text(value):
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def _packet(first, body):
    length, size = bytearray(), len(body)
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (0x80 if size else 0))
        if not size:
            return bytes((first,)) + bytes(length) + body


def _header(data, start=0):
    """(where the body begins, its length) of the packet at `start`; None while the header is not whole."""
    size, shift, at = 0, 0, start + 1
    while at < len(data):
        size |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return at, size
    return None


def _length(data):
    """Bytes of the packet that begins here, as far as its header is here; 0 while it is not."""
    header = _header(data)
    return sum(header) if header else 0


def _split(data):
    """Whole packets as (first byte, body), and the bytes that are left."""
    packets, start = [], 0
    while True:
        header = _header(data, start)
        if header is None or len(data) - header[0] < header[1]:
            return packets, data[start:]
        at, size = header
        packets.append((data[start], data[at : at + size]))
        start = at + size


class Listener:
    """Accepts connections in a thread of its own, and gives each to `_serve`."""

    def __init__(self, port: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self):
        return self._server.getsockname()[1]

    def hang_up(self):
        for connection in self._sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._sockets.clear()

    def close(self):
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.hang_up()

    def _accept(self):
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            self._sockets.append(client)
            self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        raise NotImplementedError


class HttpProxy(Listener):
    """An HTTP proxy that connects further on CONNECT. `status`: answers this, and makes no connection.

    requests: the head of each.
    """

    def __init__(self, status: str = "") -> None:
        self.status, self.requests = status, list[str]()
        super().__init__()
        self.address = f"127.0.0.1:{self.port}"

    def _serve(self, client):
        threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.requests.append(head.decode())
        if self.status:
            client.sendall(f"HTTP/1.1 {self.status}\r\nContent-Length: 0\r\n\r\n".encode())
            return
        host, _, port = self.requests[-1].split()[1].rpartition(":")
        broker = socket.create_connection((host, int(port)))
        self._sockets.append(broker)
        client.sendall(b"HTTP/1.1 200 Connection established\r\nVia: a test\r\n\r\n")
        for source, target in ((client, broker), (broker, client)):
            threading.Thread(target=_pump, args=(source, target), daemon=True).start()


def _pump(source, target):
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


class Peer(Listener):
    """Answers each connection with the next of `answers` after what the client sends first; the last repeats.

    An answer is bytes, or None for silence. `ends`: it then closes the connection, for all or for each.
    """

    def __init__(self, *answers: bytes | None, ends: bool | list[bool] = False, port: int = 0) -> None:
        self.answers, self.connections, self.stream = list(answers), 0, bytearray()
        self.ends = ends if isinstance(ends, list) else [ends]
        super().__init__(port)

    @property
    def url(self):
        return f"mqtt://127.0.0.1:{self.port}"

    def _serve(self, client):
        answer = self.answers[min(self.connections, len(self.answers) - 1)]
        ends = self.ends[min(self.connections, len(self.ends) - 1)]
        self.connections += 1
        threading.Thread(target=self._answer, args=(client, answer, ends), daemon=True).start()

    def _answer(self, client, answer, ends):
        with suppress(OSError):
            self.stream += client.recv(4096)
            if answer is not None:
                client.sendall(answer)
            if ends:
                client.shutdown(socket.SHUT_RDWR)
                client.close()
                return
            while data := client.recv(65536):
                self.stream += data


@contextmanager
def black_hole() -> Iterator[int]:
    """A port of this machine at which connections are neither accepted nor refused."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        waiting = []
        for _ in range(4):  # fill the queue of connections, so that further ones get no answer
            caller = socket.socket()
            caller.setblocking(False)
            caller.connect_ex(server.getsockname())
            waiting.append(caller)
        time.sleep(0.05)
        try:
            yield server.getsockname()[1]
        finally:
            for caller in waiting:
                caller.close()
