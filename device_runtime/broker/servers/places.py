"""Shares the connections of a listening socket among addresses, so that no stranger shuts out the others.

Each connection has a place in a table from `accept` until it is closed, also during the TLS handshake. When
the table is full, a newcomer takes the place of the oldest silent connection of the address that has most.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import itertools
import logging
import resource
import socket
import struct
import sys
import termios
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import IntEnum
from math import inf

from device_runtime.console import CountedLines

log = logging.getLogger(__name__)

_WHY = "silent, too slow, or too many of one address"
ADDRESSES = 4096
"""Addresses whose rate is remembered."""
ACCEPTED_AT_ONCE = 64
"""The most connections that are accepted before those that are open get a turn."""
BACKLOG = 512
"""Connections that wait in the kernel to be accepted; a short flood must not use them all up."""

OTHER_FILES = 64
"""Files that this process needs for all else, at least."""


class Stage(IntEnum):
    """How far a connection has come; of two, the one at the lower stage is ended first."""

    SILENT = 0
    """It has requested nothing yet."""
    IDLE = 1
    """All that it requested is answered."""
    BUSY = 2
    """A request is being read or answered."""
    PROVEN = 3
    """It has shown a credential; it is never ended to make room."""


@dataclass(frozen=True)
class Shares:
    """Limits on the connections of one listening socket, and the patience with each.

    most: open connections.
    of_address: of one address, of those that have shown no credential.
    silent: of one address, of those that have requested nothing.
    burst, rate: new connections of one address at once, and then each second.
    first_s: seconds for the handshakes and the first request.
    body_s: seconds for what belongs to a request, such as a body.
    idle_s: seconds for the next request.
    stall_s, least_rate: what waits to be sent must leave at this many bytes a second, over `stall_s` seconds.
    look_s: seconds between two looks at the deadlines.
    trusted: networks without a share of their own, such as a proxy that speaks for many.
    """

    most: int = 320
    of_address: int = 256
    silent: int = 32
    burst: float = 256.0
    rate: float = 40.0
    first_s: float = 20.0
    body_s: float = 60.0
    idle_s: float = 10.0
    stall_s: float = 60.0
    least_rate: float = 100.0
    look_s: float = 1.0
    trusted: tuple[str, ...] = ()


def within_files(shares: Shares) -> Shares:
    """The shares, with no more connections than half of the files that this process may open."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return shares
    return replace(shares, most=min(shares.most, max(8, (most - OTHER_FILES) // 2)))


class Place:
    """The place of one connection. `end` closes it at once; a server may set a better way than the first."""

    def __init__(self, places: Places, address: str, end: Callable[[], object]) -> None:
        self.address, self.end = address, end
        self.sent: Callable[[], int | None] | None = None
        """Bytes that the other end has taken so far; None while nothing waits to be sent."""
        self._places = places
        self.enter(Stage.SILENT, places.shares.first_s)
        self._taken_bytes, self._looked_at = -1, -inf

    def enter(self, stage: Stage, within_s: float = inf) -> None:
        """Note the stage; the connection must leave it within so many seconds."""
        self.stage = stage
        self._due_at = self._places.clock() + within_s

    def is_overdue(self, now: float) -> bool:
        """Whether its time is over, or its other end takes too little of what is sent."""
        return now >= self._due_at or self._is_stalled(now)

    def release(self) -> None:
        """Give the place back; may be called twice."""
        self._places.release(self)

    def _is_stalled(self, now: float) -> bool:
        taken_bytes = self.sent() if self.sent else None
        if taken_bytes is None:
            self._looked_at = -inf
            return False
        if self._looked_at == -inf:
            self._taken_bytes, self._looked_at = taken_bytes, now
            return False
        waited_s = now - self._looked_at
        if waited_s < self._places.shares.stall_s:
            return False
        too_little = taken_bytes - self._taken_bytes < self._places.shares.least_rate * waited_s
        self._taken_bytes, self._looked_at = taken_bytes, now
        return too_little


class Places:
    """The places of a listening socket's connections. `name` is for the log, `clock` gives seconds.

    Connections may be closed in any thread.
    """

    def __init__(
        self, shares: Shares | None = None, name: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.shares, self.clock = shares or Shares(), clock
        self._name = name or "a listening socket"
        self._trusted = [ipaddress.ip_network(network) for network in self.shares.trusted]
        self._open: dict[Place, None] = {}  # the oldest first
        self._by_address: Counter[str] = Counter()
        self._by_socket: dict[int, Place] = {}
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._looking = False
        self._lock = threading.RLock()
        self._lines = CountedLines(log, clock)

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, host: str, end: Callable[[], object]) -> Place | None:
        """A place for a new connection, ending another one if need be; None if no place is free."""
        address = address_share(host)
        with self._lock:
            if not (self._is_in_time(address) and self._has_room(address)):
                self._lines.say(f"{self._name}: connections are refused or ended", _WHY)
                return None
            place = Place(self, address, end)
            self._open[place] = None
            self._by_address[address] += 1
            return place

    def held_by(self, place: Place | None) -> int:
        """The connections of the address that has this place."""
        return self._by_address[place.address] if place else 0

    def of(self, number: int) -> Place | None:
        """The place of the open socket with this file number."""
        return self._by_socket.get(number)

    def put(self, number: int, place: Place) -> None:
        """Note the socket of a place, by its file number."""
        self._by_socket[number] = place

    def forget(self, number: int) -> None:
        """Give back the place of a socket that is being closed."""
        if place := self._by_socket.pop(number, None):
            self.release(place)

    def release(self, place: Place) -> None:
        """Give a place back; a second time does nothing."""
        with self._lock:
            if place in self._open:
                del self._open[place]
                self._by_address[place.address] -= 1
                if not self._by_address[place.address]:
                    del self._by_address[place.address]

    def look(self) -> None:
        """End the connections whose time is over, or whose other end takes too little."""
        now = self.clock()
        with self._lock:
            for place in [place for place in self._open if place.is_overdue(now)]:
                self._end(place)

    def look_often(self) -> None:
        """Look regularly in the running event loop, for as long as connections are open."""
        loop = asyncio.get_running_loop()
        if not self._looking:
            self._looking = True
            loop.call_later(self.shares.look_s, self._look_again, loop)

    def _look_again(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look()
        self._looking = bool(self._open)
        if self._looking:
            loop.call_later(self.shares.look_s, self._look_again, loop)

    def _is_in_time(self, address: str) -> bool:
        """Whether this address opens no more connections a second than it may (a token bucket)."""
        if self._is_trusted(address):
            return True
        now, (left, then) = self.clock(), self._left.pop(address, (self.shares.burst, 0.0))
        left = min(self.shares.burst, left + max(0.0, now - then) * self.shares.rate)
        self._left[address] = (max(0.0, left - 1.0), now)
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return left >= 1.0

    def _has_room(self, address: str) -> bool:
        """Whether a connection of this address has room; another connection is ended for it if need be."""
        free = self._is_trusted(address)
        unproven = [place for place in self._open if place.address == address and place.stage < Stage.PROVEN]
        silent = [place for place in unproven if place.stage is Stage.SILENT]
        if not free and len(silent) >= self.shares.silent:
            self._end(silent[0])
        elif not free and len(unproven) >= self.shares.of_address:
            return self._end_one(unproven, Stage.IDLE)
        elif len(self._open) >= self.shares.most:
            return self._end_of_crowd(address, len(unproven))
        return True

    def _end_of_crowd(self, address: str, count: int) -> bool:
        """End a connection of the address that has most. Returns False if this address itself has most."""
        unproven = [place for place in self._open if place.stage < Stage.PROVEN]
        counts = Counter(place.address for place in unproven)
        crowd, size = max(counts.items(), key=lambda item: item[1], default=(address, 0))
        if size <= count + 1:
            crowd = address
        worst = Stage.IDLE if crowd == address or self._is_trusted(crowd) else Stage.BUSY
        return self._end_one([place for place in unproven if place.address == crowd], worst)

    def _end_one(self, places: list[Place], worst: Stage) -> bool:
        """End the oldest of the lowest stage, none above `worst`. Returns False if there is none."""
        place = min(
            (place for place in places if place.stage <= worst), key=lambda place: place.stage, default=None
        )
        if place is None:
            return False
        self._end(place)
        return True

    def _end(self, place: Place) -> None:
        self.release(place)
        self._lines.say(f"{self._name}: connections are refused or ended", _WHY)
        with suppress(OSError):
            place.end()

    def _is_trusted(self, address: str) -> bool:
        if not self._trusted or "/" in address or not address:
            return False
        ip = ipaddress.ip_address(address)
        return any(ip in network for network in self._trusted)


def address_share(host: str) -> str:
    """The address that limits count by: an IPv4 address, `::1`, or an IPv6 /64 network; "" if unknown."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    whole = address.version == 4 or address.is_loopback
    return str(address if whole else ipaddress.ip_network((address, 64), strict=False))


class SharedListener(socket.socket):
    """A listening socket that gives each accepted connection a place, and closes those that get none."""

    places: Places
    _accepted: itertools.count[int]

    @classmethod
    def of(cls, listening: socket.socket, places: Places) -> SharedListener:
        """Take over a listening socket, which becomes non-blocking."""
        shared = cls(fileno=listening.detach())
        shared.setblocking(False)
        shared.places, shared._accepted = places, itertools.count(1)
        return shared

    def accept(self) -> tuple[PlacedSocket, object]:
        """The next connection that has a place. Raises BlockingIOError where none waits, and now and then."""
        while next(self._accepted) % ACCEPTED_AT_ONCE:
            accepted, address = super().accept()
            connection = PlacedSocket(fileno=accepted.detach())
            place = self.places.admit(str(address[0]), connection.hang_up)
            if place is None:
                connection.reset()
                continue
            self.places.put(connection.fileno(), place)
            connection.places, connection.place = self.places, place
            with suppress(RuntimeError):  # a server with threads looks by itself
                self.places.look_often()
            return connection, address
        raise BlockingIOError


class PlacedSocket(socket.socket):
    """A connection, which gives its place back when it is closed."""

    places: Places | None = None
    place: Place | None = None

    def close(self) -> None:
        """Close the connection, and give its place back."""
        if self.places and self.fileno() >= 0:
            self.places.forget(self.fileno())
        super().close()

    def hang_up(self) -> None:
        """End both directions; the server then sees the end, and closes."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """Close at once, and keep nothing of it in the kernel."""
        with suppress(OSError):
            self.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


_ACKED = 120
"""Where the acknowledged bytes (64 bits) begin in Linux's struct tcp_info."""


def sent_by(transport: asyncio.Transport) -> Callable[[], int | None]:
    """How many bytes the other end of a transport has taken, for `Place.sent`."""
    plain = transport.get_extra_info("socket")

    def sent() -> int | None:
        number = plain.fileno() if plain else -1
        waiting = transport.get_write_buffer_size()
        if number < 0:
            return None
        with suppress(OSError):
            waiting += struct.unpack("i", fcntl.ioctl(number, termios.TIOCOUTQ, b"\0" * 4))[0]
        if not waiting:
            return None
        if sys.platform == "linux":
            with suppress(OSError, struct.error):
                about = plain.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED + 8)
                return int(struct.unpack_from("Q", about, _ACKED)[0])
        return -waiting

    return sent
