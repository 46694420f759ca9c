"""The process of the service: runs broker, link, tasks, and HTTP until they are done or stopped.

Reports its state to systemd (sd_notify(3)): ready, alive, stopping.
"""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from device_runtime.aggregator.configuration import enrolled, join_address
from device_runtime.aggregator.configuration.config import (
    ServerConfig,
    broker_for,
    database_for,
    keep_port,
    renewal,
)
from device_runtime.aggregator.configuration.join_address import BrowserAccess, Reader
from device_runtime.aggregator.configuration.logs import EventLog
from device_runtime.aggregator.errors import ConfigError, MissingExtra, NoContributions
from device_runtime.aggregator.limits import BoundedInbox
from device_runtime.aggregator.machine.ports import Ports
from device_runtime.aggregator.machine.run_events import Observer
from device_runtime.aggregator.rounds import task_thread
from device_runtime.aggregator.rounds.service import Service
from device_runtime.aggregator.rounds.task_thread import TaskThread
from device_runtime.aggregator.storage.database import has_run
from device_runtime.aggregator.storage.run_files import Records
from device_runtime.aggregator.tasks.closing import FullBuffer
from device_runtime.aggregator.tasks.task import Task
from device_runtime.aggregator.views.console_log import ConsoleLog, ConsoleView
from device_runtime.broker.security import audit
from device_runtime.broker.servers.mosquitto import Mosquitto
from device_runtime.broker.servers.server import RunningBroker
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.extras import extra_needed
from device_runtime.service_process import SystemdWatchdog, sleep_until, stopped_by_signals
from device_runtime.user_account import provide_temporary_folder

from .worker_pool import WorkerOrder, Workers

if TYPE_CHECKING:
    from device_runtime.aggregator.http.server import HttpServer


log = logging.getLogger(__name__)

QUEUE_LIMIT = 65_536
"""Most messages to devices that may wait to be sent."""
QUEUE_BYTES = 256 * 1024**2
"""Most bytes of messages that may wait to be sent."""


class Process:
    """The service with these settings. `quiet`: prints only the tables at the end.

    folders: the run folder of each task. ready: is set once devices can join. url: of the broker; empty
    before. http_url: of the HTTP server; empty where there is none.
    """

    def __init__(self, server: ServerConfig, tasks: Sequence[Task], quiet: bool = False) -> None:
        """Raises ConfigError for tasks that cannot be served together.

        That is two tasks of one name, several tasks in the run folder of a single one, or a task that needs
        more devices than `max_devices`.
        """
        names = [task.name for task in tasks]
        if len(set(names)) < len(names):
            raise ConfigError(f"tasks are called {', '.join(names)}: each needs a different name")
        for task in tasks:
            _check_room(task, server.max_devices)
        self._server = server
        self._browser_access: BrowserAccess | None = None
        self._quiet = quiet
        self._structured = server.log.format is not None
        self.ready = threading.Event()
        self.url = self.http_url = ""
        self._stop = threading.Event()
        self._open_folders: list[Path] = []
        self._tasks = [TaskThread(task, self._stop) for task in tasks]
        parent = server.run_dir or Path("runs")
        alone = server.run_dir is not None and len(tasks) == 1
        if not alone and has_run(parent):
            raise ConfigError(
                f"{parent} is the run folder of one task, but several tasks have a folder each in it: move "
                f"its content to {parent / 'NAME'}, by that task's name"
            )
        self.folders = [parent if alone else parent / name for name in names]

    def stop(self) -> None:
        """Makes `run` end in order; may be called from another thread, also before `run`."""
        self._stop.set()

    @property
    def done(self) -> bool:
        """Whether all tasks are done."""
        return all(thread.ended.done for thread in self._tasks)

    def run(self) -> None:
        """Serves until all tasks are done or a signal comes; a second signal ends at once and loses nothing.

        Raises AggregatorError, BrokerError, ModelError; NoContributions where a run was abandoned, after the
        other tasks are done.
        """
        inbox = task_thread.inbox_of(self._tasks)
        provide_temporary_folder(self.folders[0])
        with ExitStack() as stack:
            stack.enter_context(stopped_by_signals(self._stop.set, inbox.wake))
            broker, url = broker_for(self._server.broker, self.folders[0])
            if broker:
                stack.callback(broker.stop)
            if self._server.workers and broker and not isinstance(broker, Mosquitto):
                raise ConfigError(
                    f"workers need shared subscriptions, which {broker.name} lacks: install Mosquitto"
                )
            self._browser_access = join_address.browser_access(self._server, url)
            self._serve(url, broker, inbox)

    def _serve(self, url: BrokerUrl, broker: RunningBroker | None, inbox: BoundedInbox) -> None:
        subscriptions = topics.ALL_BUT_CONTRIBUTIONS if self._server.workers else (topics.FROM_DEVICES,)
        options = LinkOptions(
            subscriptions=subscriptions,
            queue_limit=QUEUE_LIMIT,
            queue_bytes=QUEUE_BYTES,
            renewed=renewal(self._server.broker),
        )
        link = Link(url, f"aggregator-{secrets.token_hex(4)}", inbox, options)
        with ExitStack() as stack:
            views = [stack.enter_context(closing(self._view(url, t.task.name))) for t in self._tasks]
            http = stack.enter_context(self._http_server(link))
            stack.callback(self._end)
            self._open(url, link, (views, http))
            if broker:
                self._say(f"broker: {broker.name} at {broker.url} ({broker.why})")
                self._say(f"devices join with: device-runtime join {broker.url} --data FOLDER")
            if http:
                self._say(f"http: {http.start()}")
            if http and self._browser_access:
                self._welcome(http, self._browser_access)
            link.connect(stop=self._stop)
            if self._stop.is_set() and not link.connected:
                return
            self.url, self.http_url = broker.url if broker else str(url), http.url if http else ""
            self.ready.set()
            at_work = stack.enter_context(ExitStack())
            at_work.enter_context(Workers(self._server.workers, self._order(url), inbox))
            with SystemdWatchdog(lambda: task_thread.silence_s(self._tasks)):
                task_thread.serve(self._tasks, inbox, link.publish, self._server.max_devices)
                self._leave(link)
                at_work.close()
                self._stay()
        for thread in self._tasks:
            if not thread.ended.done and not thread.ended.gave_up:
                text = f"stopped in round {thread.ended.round}; the same command goes on with it"
                log.info("%s", text) if self._structured else print(self._label(thread.task.name) + text)
        if vain := [(t.task.name, t.ended.gave_up) for t in self._tasks if t.ended.gave_up]:
            raise NoContributions("; ".join(f"{self._label(name)}{error}" for name, error in vain))

    def _welcome(self, http: HttpServer, access: BrowserAccess) -> None:
        """Prints how browsers join; only a terminal gets a one-time link, as many may read a log."""
        on_terminal = sys.stdout.isatty() and not (self._structured or self._quiet)
        reader = Reader(time.time(), terminal=True) if on_terminal else None
        self._say(join_address.join_text(access, http.url, reader))
        if reader and access.writable and access.site:
            audit.note(access.site.folder, audit.this_user(), "make a link", "a browser, shown at the start")

    def _open(
        self, url: BrokerUrl, link: Link, observing: tuple[Sequence[ConsoleView], HttpServer | None]
    ) -> None:
        """Opens all run folders, or none. Raises what Service raises."""
        views, http = observing
        database = database_for(self._server.database)
        devices = enrolled.enrolled_devices(self._server.broker.enrolment)
        for thread, folder, view in zip(self._tasks, self.folders, views, strict=True):
            watchers: tuple[Observer, ...] = http.observers(thread.task.name) if http else ()
            observers = (Records(folder), view, *watchers)
            seal = enrolled.offer_seal(self._server.broker.enrolment, folder)
            ports = Ports(
                link,
                thread.inbox,
                observers,
                thread.loop_clock,
                url.mqtt5,
                seal,
                enrolled.key_agreement(self._server.broker.enrolment),
                devices,
                max_devices=self._server.max_devices,
                database=database,
                backlog=link.waiting_bytes,
            )
            thread.open(partial(Service, thread.task, folder, ports))
            audit.note(folder, audit.this_user(), "start", f"device-runtime {version('device-runtime')}")
            self._open_folders.append(folder)
            keep_port(folder, url)

    def _order(self, url: BrokerUrl) -> WorkerOrder:
        """The order for worker processes. The name of their group is secret: any device might join it."""
        topic = topics.shared(secrets.token_hex(16), topics.CONTRIBUTIONS)
        database = database_for(self._server.database)
        return WorkerOrder(url, topic, tuple(self.folders), database, self._server.log, self._server.broker)

    def _end(self) -> None:
        """Stops all task threads, also after an error."""
        self._stop.set()
        for thread in self._tasks:
            with suppress(Exception):
                thread.end()
        for thread, folder in zip(self._tasks, self._open_folders):  # noqa: B905 - the others never opened
            where = "after its last round" if thread.ended.done else f"in round {thread.ended.round}"
            audit.note(folder, audit.this_user(), "stop", where)
        self._open_folders.clear()

    def _leave(self, link: Link) -> None:
        """Closes the link, and clears the retained offer of each task that is done or abandoned."""
        wills = [thread.ended.withdrawal for thread in self._tasks if thread.ended.withdrawal]
        if wills and not link.connected:
            topics_left = ", ".join(will.topic for will in wills)
            log.warning(
                "the broker is away, so it still announces what is over (%s): start again to clear it",
                topics_left,
            )
        for will in wills[:-1]:
            link.publish(will.topic, will.payload, will.retain)
        link.close(wills[-1] if wills else None)

    def _stay(self) -> None:
        """Keeps HTTP running after all tasks are done until a signal comes, if `http.stay` is set."""
        if any(thread.ended.gave_up for thread in self._tasks):
            return
        if self._server.http and self._server.http.stay and not self._stop.is_set():
            self._say("all is done; http answers until it is stopped")
            sleep_until(self._stop, inf)

    @contextmanager
    def _http_server(self, link: Link) -> Iterator[HttpServer | None]:
        """The HTTP server, if there are settings for it. Raises MissingExtra, AddressError, ConfigError."""
        if self._server.http is None:
            yield None
            return
        try:
            from device_runtime.aggregator.http.server import HttpServer
            from device_runtime.aggregator.http.watch import ServedTask
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"{extra_needed('http', 'service', error.name)}; or leave [http] out"
            ) from None
        database = database_for(self._server.database)
        hosted = [
            ServedTask(thread.task, folder, link, thread.loop_clock, database=database)
            for thread, folder in zip(self._tasks, self.folders, strict=True)
        ]
        enrolment = self._server.broker.enrolment
        audited = (*self.folders, enrolment) if enrolment else tuple(self.folders)
        http = HttpServer(self._server.http, hosted, self._browser_access, audited=audited)
        try:
            yield http
        finally:
            http.stop()

    def _say(self, text: str) -> None:
        if self._structured:
            log.info("%s", text)
        elif not self._quiet:
            print(text, flush=True)

    def _view(self, broker: BrokerUrl, task: str) -> ConsoleView:
        if self._structured:
            return EventLog(task)
        if self._quiet or not sys.stdout.isatty() or len(self._tasks) > 1:
            return ConsoleLog(sys.stdout, self._quiet, self._label(task))
        from device_runtime.aggregator.views.terminal import TerminalView

        return TerminalView(str(broker))

    def _label(self, task: str) -> str:
        """The prefix of a task's lines; empty for a single task."""
        return f"{task}: " if len(self._tasks) > 1 else ""


def _check_room(task: Task, most: int) -> None:
    """Raises ConfigError where a task would wait forever, for more devices than `most`."""
    numbers = {
        name: getattr(task, name) for name in ("min_devices", "min_contributions", "devices_per_round")
    }
    if isinstance(task.closing, FullBuffer):
        numbers["buffer_size"] = task.closing.size
    for name, number in numbers.items():
        if number is not None and number > most:
            raise ConfigError(f"max_devices is {most}, and task {task.name!r} wants {name} = {number}")
