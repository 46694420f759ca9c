"""The options and the interface that Mosquitto and amqtt share here."""

from __future__ import annotations

import errno
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.wire.url import PATH, TLS, bracketed, is_loopback

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


WEB_USER = "browser"
"""The user name of a page at the WebSockets of a broker that is open to this machine."""


@dataclass(frozen=True)
class WebSockets:
    """A second listener, for browsers, at `port` (0: a free one).

    At a broker that is open to this machine, a page of any site could connect from a browser here. There a
    page must give `password`, as WEB_USER; amqtt instead admits only pages that come from this machine.
    """

    port: int = 0
    password: str = field(default="", repr=False)


@dataclass(frozen=True)
class BrokerOptions:
    """Options of a broker. By default it has a free port of this machine, admits anyone and keeps nothing.

    With `users` (name to password) nobody else may connect, and each may use only its own branch of the topic
    tree, except the user named `aggregator`, who may use all of it (amqtt checks passwords only). With
    `tls.ca` and no users, a client proves its name by a certificate of that authority instead. `folder` is
    for the broker's files (None: a temporary one). `tls` needs `cert` and `key`. `web` adds WebSockets, which
    are encrypted if `tls` is given. Raises BrokerStartError.
    """

    port: int = 0
    host: str = "127.0.0.1"
    folder: Path | None = None
    users: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    aggregator: str = "aggregator"
    tls: TLS | None = None
    persistence: bool = False
    web: WebSockets | None = None

    def __post_init__(self) -> None:
        for port in (self.port, self.web.port if self.web else 0):
            if not 0 <= port < 65536:
                raise BrokerStartError(f"port {port} is impossible: use 0 (any) to 65535")
        if self.web and self.port and self.web.port == self.port:
            raise BrokerStartError(f"port {self.port} is asked for twice: give WebSockets another")
        for user, password in self.users.items():
            if not _USER.fullmatch(user) or not password:
                raise BrokerStartError(
                    f"user {user!r}: use 1 to 64 letters, digits, '.', '_' or '-', and a password"
                )
        if self.tls and not (self.tls.cert and self.tls.key):
            raise BrokerStartError("a broker with TLS needs a certificate and its key: give both files")
        if not is_loopback(self.host) and not (self.tls and self.closed):
            raise BrokerStartError(
                f"a broker on {self.host} is open to the network: give it TLS and users, or use 127.0.0.1"
            )

    @property
    def closed(self) -> bool:
        """Whether only clients that prove who they are may connect."""
        return bool(self.users) or bool(self.tls and self.tls.ca)


class RunningBroker(Protocol):
    """A broker that accepts connections until `stop`."""

    options: BrokerOptions

    @property
    def url(self) -> str:
        """The broker's URL for `BrokerUrl.parse`; without user or password."""

    @property
    def web_url(self) -> str:
        """The URL of its WebSockets, in the same way; empty if there are none."""

    @property
    def name(self) -> str:
        """The program and its version: "Mosquitto 2.0.11"."""

    @property
    def why(self) -> str:
        """Why this one was chosen, in one line."""

    @property
    def alive(self) -> bool:
        """Whether it still runs."""

    def stop(self) -> None:
        """Stop it, and wait until it has ended. May be called twice."""


def url_of(options: BrokerOptions, port: int) -> str:
    """The URL of a broker that listens on `port`."""
    host = "127.0.0.1" if options.host in ("0.0.0.0", "::") else options.host  # noqa: S104 - compared, not bound
    return f"{'mqtts' if options.tls else 'mqtt'}://{bracketed(host)}:{port}"


def web_url_of(options: BrokerOptions, port: int) -> str:
    """The URL of the WebSockets on `port`; empty if there are none."""
    return url_of(options, port).replace("mqtt", "ws", 1) + PATH if options.web else ""


def find_port(options: BrokerOptions) -> int:
    """The port asked for, or one that is free now. Raises BrokerStartError when it is taken."""
    return _free(options.host, options.port)


def find_ports(options: BrokerOptions) -> tuple[int, int]:
    """The port of `find_port`, and another one for WebSockets, or 0 if there are none."""
    port = find_port(options)
    if not options.web:
        return port, 0
    while (web := _free(options.host, options.web.port)) == port:
        pass
    return port, web


def _free(host: str, port: int) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise BrokerStartError(
                f"cannot listen on {host} port {port} ({why}): choose another with --port"
            ) from None
        return int(probe.getsockname()[1])


def accepts(host: str, port: int, timeout_s: float, alive: Callable[[], bool]) -> bool:
    """Wait until something accepts connections there; False when it is no longer alive, or too slow.

    Raises BrokerStartError where the machine has no network that leads there.
    """
    end = time.monotonic() + timeout_s
    while alive() and time.monotonic() < end:
        try:
            with socket.create_connection((host, port), timeout=0.5):
                return alive()
        except OSError as error:
            if error.errno in (errno.ENETUNREACH, errno.ENETDOWN, errno.EHOSTUNREACH):
                why = (error.strerror or str(error)).lower()
                raise BrokerStartError(
                    f"the broker at {host} port {port} cannot be reached ({why}): is the network up?"
                ) from None
        time.sleep(0.02)
    return False
