"""One process of the service: broker, link, the loop, and beside it HTTP, until it is done or stopped."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.aggregator.errors import ConfigError, MissingExtra, NoContributions
from device_runtime.aggregator.intake.worker_pool import WorkerOrder, Workers
from device_runtime.aggregator.rounds import task_thread as lodger
from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.rounds.task_thread import Lodger
from device_runtime.aggregator.storage.database import begun
from device_runtime.aggregator.storage.run_files import Records
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.console_log import ConsoleLog, PeopleView
from device_runtime.aggregator.views.listener import Observer
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import RunningBroker
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl

from . import enrolled, join_address
from . import join_address as doorway
from .config import ServerConfig, broker_for, database_for, keep_port
from .join_address import Doorway, Reader
from .logs import Events

if TYPE_CHECKING:
    from device_runtime.aggregator.http.server import HttpServer


log = logging.getLogger(__name__)

QUEUE_LIMIT = 65_536
"""Messages to devices that may wait to be sent."""
QUEUE_BYTES = 256 * 1024**2
"""Bytes of them."""


class Process:
    """The service with these settings. `quiet`: only the tables at the end."""

    def __init__(self, server: ServerConfig, tasks: Sequence[Task], quiet: bool = False) -> None:
        """Raises ConfigError for two tasks of one name, for several where one alone has its run, and for one
        that wants more devices than there may be.
        """
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise ConfigError(f"tasks are called {', '.join(names)}: each needs a name of its own")
        for task in tasks:
            _check_room(task, server.max_devices)
        self._server = server
        self._doorway: Doorway | None = None
        self._quiet = quiet
        self._structured = server.log.format is not None
        self._stop = threading.Event()
        self._lodgers = [Lodger(task, self._stop) for task in tasks]
        parent = server.run_dir or Path("runs")
        alone = server.run_dir is not None and len(tasks) == 1
        if not alone and begun(parent):
            raise ConfigError(
                f"{parent} is the run folder of one task, and several have a folder each there: move what is "
                f"in it to {parent / 'NAME'}, of that task's name"
            )
        self._folders = [parent if alone else parent / name for name in names]

    def run(self) -> None:
        """Serve until all is done or a signal; a second signal ends it at once, and loses nothing either.

        Raises AggregatorError, BrokerError, ModelError; NoContributions where a run was given up, when the
        others are done.
        """
        _on_signals(self._stop)
        with ExitStack() as stack:
            broker, url = broker_for(self._server.broker, self._folders[0])
            if broker:
                stack.callback(broker.stop)
            if self._server.workers and broker and not isinstance(broker, Mosquitto):
                raise ConfigError(f"workers share what comes in, and {broker.name} cannot: install Mosquitto")
            self._doorway = doorway.open_to(self._server, url)
            self._serve(url, broker)

    def _serve(self, url: BrokerUrl, broker: RunningBroker | None) -> None:
        inbox = lodger.inbox_of(self._lodgers)
        wanted = topics.BUT_CONTRIBUTIONS if self._server.workers else (topics.FROM_DEVICES,)
        options = LinkOptions(subscriptions=wanted, queue_limit=QUEUE_LIMIT, queue_bytes=QUEUE_BYTES)
        link = Link(url, f"aggregator-{secrets.token_hex(4)}", inbox, options)
        with ExitStack() as stack:
            views = [stack.enter_context(closing(self._view(url, one.task.name))) for one in self._lodgers]
            site = stack.enter_context(self._site(link))
            stack.callback(self._end)
            self._open(url, link, (views, site))
            if broker:
                self._say(f"broker: {broker.name} at {broker.url} ({broker.why})")
                self._say(f"devices join with: device-runtime join {broker.url} --data FOLDER")
            if site:
                self._say(f"http: {site.start()}")
            if site and self._doorway:
                self._welcome(site, self._doorway)
            link.connect()
            at_work = stack.enter_context(ExitStack())
            at_work.enter_context(Workers(self._server.workers, self._order(url), inbox))
            with SystemdWatchdog(lambda: lodger.silence_s(self._lodgers)):
                lodger.serve(self._lodgers, inbox, link.publish, self._server.max_devices)
                self._leave(link)
                at_work.close()
                self._stay()
        for one in self._lodgers:
            if not one.done and not one.gave_up:
                text = f"stopped in round {one.round}; the same command goes on with it"
                log.info("%s", text) if self._structured else print(self._label(one.task.name) + text)
        if vain := [f"{self._label(one.task.name)}{one.gave_up}" for one in self._lodgers if one.gave_up]:
            raise NoContributions("; ".join(vain))

    def _welcome(self, site: HttpServer, door: Doorway) -> None:
        """Say how browsers come in; a link is for the terminal alone, a log keeps it for too many."""
        shown = not (self._structured or self._quiet)
        reader = Reader(time.time(), sys.stdout.isatty()) if shown else None
        self._say(join_address.told(door, site.url, reader))

    def _open(self, url: BrokerUrl, link: Link, told: tuple[Sequence[PeopleView], HttpServer | None]) -> None:
        """Every run folder, or none. Raises what Service raises."""
        views, site = told
        database = database_for(self._server.database)
        devices = enrolled.devices(self._server.broker.enrolment)
        for one, folder, view in zip(self._lodgers, self._folders, views, strict=True):
            watchers: tuple[Observer, ...] = site.observers(one.task.name) if site else ()
            observers = (Records(folder), view, *watchers)
            seal = enrolled.sealing(self._server.broker.enrolment, folder)
            ports = Ports(
                link,
                one.inbox,
                observers,
                one.pulse,
                url.mqtt5,
                seal,
                enrolled.agreeing(self._server.broker.enrolment),
                devices,
                max_devices=self._server.max_devices,
                database=database,
                backlog=link.waiting_bytes,
            )
            one.open(partial(Service, one.task, folder, ports))
            keep_port(folder, url)

    def _order(self, url: BrokerUrl) -> WorkerOrder:
        """For workers. The name of their group is secret: any device might join it."""
        topic = topics.shared(secrets.token_hex(16), topics.CONTRIBUTIONS)
        database = database_for(self._server.database)
        return WorkerOrder(url, topic, tuple(self._folders), database, self._server.log)

    def _end(self) -> None:
        """Whatever happened, nothing goes on in the background."""
        self._stop.set()
        for one in self._lodgers:
            with suppress(Exception):
                one.end()

    def _leave(self, link: Link) -> None:
        """With the retained word that a task is done, of those that are."""
        wills = [one.farewell for one in self._lodgers if one.farewell]
        for will in wills[:-1]:
            link.publish(will.topic, will.payload, will.retain)
        link.close(wills[-1] if wills else None)

    def _stay(self) -> None:
        """Where it is wished, HTTP goes on to answer when all is done, until a signal."""
        if any(one.gave_up for one in self._lodgers):
            return
        if self._server.http and self._server.http.stay and not self._stop.is_set():
            self._say("all is done; http answers until it is stopped")
            while not self._stop.is_set():
                time.sleep(lodger.LOOK_S)  # not by the event, whose lock a signal's handler may then wait for

    @contextmanager
    def _site(self, link: Link) -> Iterator[HttpServer | None]:
        """HTTP, if it is asked for. Raises MissingExtra, AddressError, ConfigError."""
        if self._server.http is None:
            yield None
            return
        try:
            from device_runtime.aggregator.http.server import HttpServer
            from device_runtime.aggregator.http.watch import Hosted
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"http needs {error.name}: pip install 'device-runtime[service]', or leave [http] out"
            ) from None
        database = database_for(self._server.database)
        hosted = [
            Hosted(one.task, folder, link, one.pulse, database=database)
            for one, folder in zip(self._lodgers, self._folders, strict=True)
        ]
        site = HttpServer(self._server.http, hosted, self._doorway)
        try:
            yield site
        finally:
            site.stop()

    def _say(self, text: str) -> None:
        if self._structured:
            log.info("%s", text)
        elif not self._quiet:
            print(text, flush=True)

    def _view(self, broker: BrokerUrl, task: str) -> PeopleView:
        if self._structured:
            return Events(task)
        if self._quiet or not sys.stdout.isatty() or len(self._lodgers) > 1:
            return ConsoleLog(sys.stdout, self._quiet, self._label(task))
        from device_runtime.aggregator.views.terminal import TerminalView

        return TerminalView(str(broker))

    def _label(self, task: str) -> str:
        """What stands before a line that is of one task of several."""
        return f"{task}: " if len(self._lodgers) > 1 else ""


def _check_room(task: Task, most: int) -> None:
    """Raises ConfigError where a task would wait for ever."""
    for name in ("min_devices", "min_contributions", "buffer_size", "devices_per_round"):
        wanted = getattr(task, name)
        if wanted is not None and wanted > most:
            raise ConfigError(f"max_devices is {most}, and task {task.name!r} wants {name} = {wanted}")


def _on_signals(stop: threading.Event) -> None:
    """The first SIGTERM or SIGINT stops in order, the next one of either at once."""
    both = (signal.SIGINT, signal.SIGTERM)

    def stopping(_number: int, _frame: object) -> None:
        stop.set()
        for number in both:
            signal.signal(number, signal.SIG_DFL)

    for number in both:
        signal.signal(number, stopping)


# FROM systemd_notify: What systemd wants to hear (sd_notify(3)): that we are ready, that we still work,
# that we stop.


def tell(state: str) -> None:
    """Say a state, "READY=1"; nothing happens where nobody asked for it ($NOTIFY_SOCKET)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.sendto(state.encode(), f"\0{address[1:]}" if address[0] == "@" else address)


def watchdog_s() -> float | None:
    """Seconds after which systemd takes silence for a hang; None when it does not look."""
    try:
        return int(os.environ["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None


class SystemdWatchdog:
    """Says that we still work for as long as the loop does; a context manager.

    `silence_s` gives the seconds since the loop last looked at the clock.
    """

    def __init__(self, silence_s: Callable[[], float]) -> None:
        self._silence_s = silence_s
        self._stop = threading.Event()
        self._limit_s = watchdog_s()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def __enter__(self) -> SystemdWatchdog:
        tell("READY=1")
        if self._limit_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        tell("STOPPING=1")
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        limit_s = self._limit_s or 0.0
        while not self._stop.wait(limit_s / 4):
            if self._silence_s() < limit_s / 2:
                tell("WATCHDOG=1")
