"""A TCP connection, plain or with TLS, that counts each byte that goes through its socket.

TLS runs over buffers in memory (ssl.MemoryBIO), since a socket of the ssl module hides what it sends.
Both streams have the methods that paho expects of a socket.
"""

from __future__ import annotations

import fcntl
import re
import select
import socket
import ssl
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass

from .addresses import UNSENT_BYTES, StepLimit, wait_until_ready

READ_BYTES = 16 * 1024
MOST_READ_BYTES = 64 * 1024
"""The most bytes read at once. Larger claims of a packet allocate no larger buffer."""
SMALL_BYTES = 1024
"""What is not larger is sent without a look at what the system holds."""
RECORD_BYTES = 16 * 1024
"""The most bytes of one TLS record."""
_BYTES_SENT = 200
"""Where Linux's tcp_info has the payload bytes that were sent, and behind them those sent again."""
_SIOCOUTQNSD = 0x894B
"""Linux's ioctl for the bytes in a TCP socket that have not been sent (linux/sockios.h)."""


MOST_ANSWER_BYTES = 8 * 1024
"""The most bytes of a proxy's answer."""


class ProxyRefused(ConnectionError):
    """An HTTP proxy made no connection, or is none."""


def _answer_of_proxy(answer: bytes) -> str:
    line = answer.partition(b"\r\n")[0].decode("ascii", "replace")[:80]
    version, _, status = line.partition(" ")
    if version.startswith("HTTP/") and status:
        return f"the proxy answers {status.strip()!r} and makes no connection"
    if not line:
        return "the proxy ends the connection without an answer"
    return f"what listens at the proxy's port is no HTTP proxy: it answers {line!r}"


@dataclass
class ByteCount:
    """Bytes that went through sockets, in both directions: messages and all that is around them.

    One thread counts; others may read.
    """

    up: int = 0
    down: int = 0


class PlainStream:
    """A connected TCP socket. Without a `limit` nothing waits: what would wait raises BlockingIOError.

    whole: `send` takes all that it is given and keeps what the system does not take yet (`unsent`), as
    paho's WebSocket needs it; otherwise it says how much it took. `failure`: the error that ended it.
    beginning: the first bytes that `recv` returned, `most_beginning` at most.
    """

    def __init__(self, raw: socket.socket, count: ByteCount, whole: bool = False) -> None:
        self.raw = raw
        self.failure: OSError | None = None
        self._count = count
        self._whole = whole
        self._limit: StepLimit | None = None
        self._taken_bytes = 0  # by the system, to be sent
        self._unsent = bytearray()
        self._ahead = b""
        self._ahead_at = 0
        self.beginning, self.most_beginning = bytearray(), 0

    @property
    def unsent(self) -> int:
        """Bytes that `flush` has still to send."""
        return len(self._unsent)

    def within(self, limit: StepLimit | None) -> None:
        """Wait in `recv` and `send` up to this limit; None: do not wait."""
        self._limit = limit

    def settimeout(self, _seconds: float | None) -> None:
        """Nothing: `within` sets how long this stream waits."""

    def setblocking(self, flag: bool) -> None:
        if not flag:
            self._limit = None

    def fileno(self) -> int:
        return self.raw.fileno()

    def pending(self) -> int:
        """Bytes that `recv` has without looking at the socket."""
        return len(self._ahead) - self._ahead_at

    def recv(self, size: int) -> bytes:
        """Up to `size` bytes; empty at the end. Raises OSError."""
        if self._whole:  # paho's WebSocket does not ask what is pending
            return self._note(self._recv_raw(size))
        if not self.pending():
            self._ahead, self._ahead_at = self._recv_raw(max(size, READ_BYTES)), 0
        data = self._ahead[self._ahead_at : self._ahead_at + size]
        self._ahead_at += len(data)
        return data

    def send(self, data: bytes | bytearray) -> int:
        """Send; returns how many bytes were taken. Raises OSError."""
        if not self._whole:
            return self._send_raw(data)
        if not self.flush():
            raise BlockingIOError
        self._unsent += data
        self.flush()
        return len(data)

    def flush(self) -> bool:
        """Send what `send` took and the system did not. Returns whether all is sent. Raises OSError."""
        while self._unsent:
            try:
                sent = self._send_raw(self._unsent)
            except BlockingIOError:
                return False
            del self._unsent[:sent]
        return True

    def ask_proxy(self, request: bytes, limit: StepLimit) -> None:
        """Lets the HTTP proxy at the other end connect further. Raises ProxyRefused, OSError."""
        self.within(limit)
        while request:
            request = request[self._send_raw(request) :]
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            byte = self._recv_raw(1)  # what follows is of the connection
            if not byte or len(answer) == MOST_ANSWER_BYTES:
                raise ProxyRefused(_answer_of_proxy(answer))
            answer += byte
        if not re.match(rb"HTTP/1\.[01] 2\d\d\b", answer):
            raise ProxyRefused(_answer_of_proxy(answer))
        self.within(None)

    def close(self) -> None:
        with suppress(OSError):
            self.flush()
        self._count.up -= max(0, self._taken_bytes - _left(self.raw, self._taken_bytes))
        self._taken_bytes = 0
        self.raw.close()

    def _note(self, data: bytes) -> bytes:
        if len(self.beginning) < self.most_beginning:
            self.beginning += data[: self.most_beginning]
        return data

    def _recv_raw(self, size: int) -> bytes:
        while True:
            try:
                data = self.raw.recv(min(size, MOST_READ_BYTES))
            except BlockingIOError:
                if self._limit is None:
                    raise
                wait_until_ready(self.raw, select.POLLIN, self._limit)
                continue
            except OSError as error:
                self.failure = error
                raise
            self._count.down += len(data)
            return data

    def _send_raw(self, data: bytes | bytearray) -> int:
        """Send at most what the system is to hold unsent, so that little is counted that is never sent."""
        while True:
            try:
                if len(data) > SMALL_BYTES and _unsent_bytes(self.raw) >= UNSENT_BYTES:
                    raise BlockingIOError
                sent = self.raw.send(data[:UNSENT_BYTES])
            except BlockingIOError:
                if self._limit is None:
                    raise
                wait_until_ready(self.raw, select.POLLOUT, self._limit)
                continue
            except OSError as error:
                self.failure = error
                raise
            self._count.up += sent
            self._taken_bytes += sent
            return sent


def _left(raw: socket.socket, taken_bytes: int) -> int:
    """Bytes that have left the socket, of those that the system has taken; all where it does not say.

    After a reset the rest is thrown away: it is not what went through the socket.
    """
    with suppress(OSError, AttributeError, struct.error):
        info = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        sent, again = struct.unpack_from("QQ", info, _BYTES_SENT)
        return min(taken_bytes, int(sent - again))
    return taken_bytes


def _unsent_bytes(raw: socket.socket) -> int:
    """Bytes that the system has taken and not sent yet; 0 where it does not say (it does on Linux)."""
    number = bytearray(4)
    try:
        fcntl.ioctl(raw, _SIOCOUTQNSD, number)
    except OSError:
        return 0
    return int.from_bytes(number, sys.byteorder)


class TlsStream(PlainStream):
    """TLS over a connected TCP socket; call `handshake` first."""

    def __init__(self, plain: PlainStream, context: ssl.SSLContext, host: str) -> None:
        super().__init__(plain.raw, plain._count, whole=True)
        self._taken_bytes = plain._taken_bytes
        self._takes_all = plain._whole
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    def handshake(self, limit: StepLimit) -> None:
        """Agree on keys, and check the certificate. Raises ssl.SSLError, OSError."""
        self.within(limit)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._pass_on()
                self._take_in()
            except ssl.SSLError:
                with suppress(OSError):  # the alert, by which the broker learns the reason
                    self._pass_on()
                raise
            else:
                self._pass_on()
                return

    def pending(self) -> int:
        return self._tls.pending() + self._incoming.pending

    def recv(self, size: int) -> bytes:
        while True:
            try:
                data = self._tls.read(min(size, MOST_READ_BYTES))
            except ssl.SSLWantReadError:
                self._pass_on()
                self._take_in()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
            except ssl.SSLError as error:
                self.failure = error
                raise
            else:
                return self._note(data)

    def send(self, data: bytes | bytearray) -> int:
        if not self.flush():
            raise BlockingIOError
        size = self._tls.write(data if self._takes_all else data[:RECORD_BYTES])
        self._pass_on()
        return size

    def _pass_on(self) -> None:
        """Send what TLS has made."""
        self._unsent += self._outgoing.read()
        self.flush()

    def _take_in(self) -> None:
        """Give TLS what has come. Raises BlockingIOError where nothing has."""
        if data := self._recv_raw(READ_BYTES):
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
