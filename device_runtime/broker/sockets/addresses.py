"""Opens a TCP connection to a host, and waits for a socket, with an end.

The addresses of the host are tried side by side ("Happy Eyeballs", RFC 8305).
"""

from __future__ import annotations

import errno
import ipaddress
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

SLICE_S = 0.1
"""Seconds after which a wait looks whether it is to end."""


class Abandoned(OSError):
    """The wait ended because the link is being closed."""


@dataclass(frozen=True)
class StepLimit:
    """When a step of connecting ends: at `end_at` (monotonic seconds), or as soon as `closing` says so."""

    end_at: float
    closing: Callable[[], bool] = lambda: False

    @classmethod
    def of(cls, seconds: float, closing: Callable[[], bool] = lambda: False) -> StepLimit:
        """The limit of a step that begins now."""
        return cls(time.monotonic() + seconds, closing)

    def slice_s(self) -> float:
        """Seconds to wait before looking again. Raises TimeoutError at the end, Abandoned when closing."""
        if self.closing():
            raise Abandoned("the link is being closed")
        left_s = self.end_at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return min(left_s, SLICE_S)


def wait_until_ready(waiting: socket.socket, events: int, limit: StepLimit) -> None:
    """Wait for `events` (of select.poll). Raises TimeoutError, Abandoned."""
    poll = select.poll()
    poll.register(waiting, events)
    while not poll.poll(1 + int(1000 * limit.slice_s())):
        pass


STAGGER_S = 0.3
"""Seconds after which the next address is tried beside those that have not answered."""
MOST_AT_ONCE = 8
"""The most addresses that are tried side by side."""
UNSENT_BYTES = 16 * 1024
"""Bytes that the system may hold unsent."""

_NOT_YET = (errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR)


@dataclass(frozen=True)
class Endpoint:
    """One address of a broker. `address`: as `socket.connect` takes it."""

    family: int
    address: tuple[str | int, ...]


def look_up(host: str, port: int, limit: StepLimit) -> list[Endpoint]:
    """The addresses of a host, IPv6 and IPv4 in turn. Raises OSError, such as socket.gaierror.

    A resolver that does not answer is left to its thread, which ends by itself.
    """
    with suppress(ValueError):
        version = ipaddress.ip_address(host.partition("%")[0]).version
        if "%" not in host:
            return [Endpoint(socket.AF_INET6 if version == 6 else socket.AF_INET, (host, port))]
    answer: list[list[Endpoint] | OSError] = []
    came = threading.Event()

    def ask() -> None:
        try:
            answer.append(_in_turn(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except UnicodeError:  # a label that is empty or too long
            answer.append(socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        except OSError as error:
            answer.append(error)
        came.set()

    try:
        threading.Thread(target=ask, name=f"look-up-{host}", daemon=True).start()
    except RuntimeError:  # no thread can be started here
        ask()
    while not came.wait(limit.slice_s()):
        pass
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def _in_turn(answers: Iterable[tuple[object, ...]]) -> list[Endpoint]:
    """Families alternate, beginning with that of the first answer; no address twice."""
    endpoints = dict.fromkeys(Endpoint(answer[0], answer[4]) for answer in answers)  # type: ignore[arg-type]
    by_family: dict[int, deque[Endpoint]] = {}
    for endpoint in endpoints:
        by_family.setdefault(endpoint.family, deque()).append(endpoint)
    ordered = []
    while any(by_family.values()):
        ordered += [endpoints.popleft() for endpoints in by_family.values() if endpoints]
    return ordered


def open_socket(endpoints: Sequence[Endpoint], limit: StepLimit) -> tuple[socket.socket, Endpoint]:
    """The first connection that one of the addresses accepts; each gets the whole time of the limit.

    The socket is not blocking. Raises TimeoutError if none answers, else the error of one that does.
    """
    race = _Race(deque(endpoints))
    try:
        while True:
            slice_s = limit.slice_s()
            race.start_next(time.monotonic())
            winner = race.winner(min(slice_s, STAGGER_S))
            if winner is not None:
                send_at_once(winner[0])
                return winner
            if race.over:
                raise race.error or TimeoutError("timed out")
    except TimeoutError:
        raise race.error or TimeoutError("timed out") from None
    finally:
        race.close()


@dataclass
class _Race:
    """Connections that are being tried, and addresses that wait for their turn."""

    waiting: deque[Endpoint]
    running: dict[int, tuple[socket.socket, Endpoint]] = field(default_factory=dict)
    error: OSError | None = None
    started_at: float = float("-inf")

    @property
    def over(self) -> bool:
        return not self.waiting and not self.running

    def start_next(self, now: float) -> None:
        """Start one more, if the last one had its time, or none is running."""
        while self.waiting and len(self.running) < MOST_AT_ONCE:
            if self.running and now - self.started_at < STAGGER_S:
                return
            self.started_at = now
            self._start(self.waiting.popleft())

    def _start(self, endpoint: Endpoint) -> None:
        try:
            tried = socket.socket(endpoint.family, socket.SOCK_STREAM)
        except OSError as error:  # a family that this machine does not have
            self.error = self.error or error
            return
        tried.setblocking(False)
        try:
            code = tried.connect_ex(endpoint.address)
        except OSError as error:
            tried.close()
            self.error = error
            return
        if code and code not in _NOT_YET:
            tried.close()
            self.error = OSError(code, os.strerror(code))
            return
        self.running[tried.fileno()] = (tried, endpoint)

    def winner(self, seconds: float) -> tuple[socket.socket, Endpoint] | None:
        """The first that is connected, within some seconds. Those that failed are closed."""
        if not self.running:
            return None
        poll = select.poll()
        for tried, _ in self.running.values():
            poll.register(tried, select.POLLOUT)
        for number, _event in poll.poll(1 + int(1000 * seconds)):
            tried, endpoint = self.running.pop(number)
            code = tried.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not code:
                return tried, endpoint
            tried.close()
            self.error = OSError(code, os.strerror(code))
        return None

    def close(self) -> None:
        for tried, _ in self.running.values():
            tried.close()
        self.running.clear()


def send_at_once(connection: socket.socket) -> None:
    """Send small messages at once (no Nagle), and let the system hold few unsent bytes.

    With Nagle's algorithm a small message waits for the acknowledgement of earlier ones, which costs 40 ms.
    On a slow link, a ping behind many unsent bytes waits longer than the keep-alive.
    """
    with suppress(OSError):  # a socket that is no TCP
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if lowat := getattr(socket, "TCP_NOTSENT_LOWAT", 0):
            connection.setsockopt(socket.IPPROTO_TCP, lowat, UNSENT_BYTES)
