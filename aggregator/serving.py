"""One process of the service: broker, link, the loop, and beside it HTTP, until it is done or stopped."""

from __future__ import annotations

import logging
import queue
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from broker import brokers, topics
from broker.errors import BrokerStartError
from broker.link import Event, Link, LinkOptions
from broker.running import BrokerOptions, RunningBroker
from broker.url import BrokerUrl

from . import enrolled
from .config import AUTO, BrokerSection, Server
from .errors import ConfigError, MissingExtra
from .logs import Events
from .notify import Watchdog
from .observer import Observer
from .plain import Plain, View
from .ports import Ports, Pulse
from .records import Records
from .service import Service
from .task import Task

if TYPE_CHECKING:
    from .web.site import Site

log = logging.getLogger(__name__)

QUEUE_LIMIT = 65_536
"""Messages to devices that may wait to be sent."""

PORT = "port"
"""In the run folder: the broker's latest port, for the next life to start its own at the same."""


class Process:
    """The service with these settings. `quiet`: only the table at the end."""

    def __init__(self, server: Server, task: Task, quiet: bool = False) -> None:
        self._server = server
        self._task = task
        self._quiet = quiet
        self._folder = server.run_dir or Path("runs") / task.name
        self._structured = server.log.format is not None

    def run(self) -> None:
        """Serve until done or a signal; a second signal ends it at once, and loses nothing either.

        Raises AggregatorError, BrokerError, ModelError.
        """
        stop = threading.Event()
        _on_signals(stop)
        with ExitStack() as stack:
            broker, url = broker_for(self._server.broker, self._folder)
            if broker:
                stack.callback(broker.stop)
            self._serve(url, broker, stop)

    def _serve(self, url: BrokerUrl, broker: RunningBroker | None, stop: threading.Event) -> None:
        inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        options = LinkOptions(subscriptions=(topics.FROM_DEVICES,), queue_limit=QUEUE_LIMIT)
        link = Link(url, f"aggregator-{secrets.token_hex(4)}", inbox, options)
        pulse = Pulse()
        seal = enrolled.sealing(self._server.broker.enrolment, self._folder)
        with closing(self._view(str(url))) as view, self._site(link, pulse) as site:
            watchers: tuple[Observer, ...] = site.observers(self._task.name) if site else ()
            observers = (Records(self._folder), view, *watchers)
            ports = Ports(link, inbox, observers, clock=pulse, mqtt5=url.mqtt5, seal=seal)
            with closing(Service(self._task, self._folder, ports)) as service:
                (self._folder / PORT).write_text(f"{url.port}\n")
                if broker:
                    self._say(f"broker: {broker.name} at {broker.url} ({broker.why})")
                    self._say(f"devices join with: device-runtime join {broker.url} --data FOLDER")
                if site:
                    self._say(f"http: {site.start()}")
                link.connect()
                with Watchdog(pulse):
                    service.run(stop)
                    link.close(service.farewell())
        if service.state.phase != "done":
            text = f"stopped in round {service.state.round}; the same command goes on with it"
            log.info("%s", text) if self._structured else print(text, flush=True)

    @contextmanager
    def _site(self, link: Link, pulse: Pulse) -> Iterator[Site | None]:
        """HTTP, if it is asked for. Raises MissingExtra, AddressError, ConfigError."""
        if self._server.http is None:
            yield None
            return
        try:
            from .web.hosted import Hosted
            from .web.site import Site
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"http needs {error.name}: pip install 'device-runtime[service]', or leave [http] out"
            ) from None
        site = Site(self._server.http, [Hosted(self._task, self._folder, link, pulse)])
        try:
            yield site
        finally:
            site.stop()

    def _say(self, text: str) -> None:
        if self._structured:
            log.info("%s", text)
        elif not self._quiet:
            print(text, flush=True)

    def _view(self, broker: str) -> View:
        if self._structured:
            return Events(self._task.name)
        if self._quiet or not sys.stdout.isatty():
            return Plain(sys.stdout, self._quiet)
        from .view import Live

        return Live(broker)


def broker_for(section: BrokerSection, folder: Path) -> tuple[RunningBroker | None, BrokerUrl]:
    """The broker to use, and the one started for it: at the port that the run had before, if that is free."""
    if section.url != AUTO or section.enrolment:
        return None, _address(section)
    before = 0 if section.port else port_before(folder)
    try:
        broker = brokers.start("auto", BrokerOptions(port=section.port or before))
    except BrokerStartError:
        if not before:
            raise
        broker = brokers.start("auto", BrokerOptions())
    return broker, BrokerUrl.parse(broker.url)


def _address(section: BrokerSection) -> BrokerUrl:
    given = None if section.url == AUTO else BrokerUrl.parse(section.url, section.tls, section.insecure)
    url = enrolled.address(section.enrolment, given) if section.enrolment else given
    if url is None:
        raise ConfigError("broker.url: expected mqtt://, mqtts:// or wss://")
    if section.password_file is None:
        return url
    try:
        password = section.password_file.read_text("utf-8").strip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"broker.password_file: cannot read {section.password_file}: {error}") from None
    return replace(url, user=section.user, password=password)


def port_before(folder: Path) -> int:
    """The port of the broker that an earlier life of the run started; 0 when there was none."""
    try:
        port = int((folder / PORT).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0


def _on_signals(stop: threading.Event) -> None:
    """The first SIGTERM or SIGINT stops in order, the next one at once."""

    def stopping(number: int, _frame: object) -> None:
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping)
