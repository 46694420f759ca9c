"""Several tasks in one process: each has its own service, run folder and thread; what comes in is routed."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress

from device_runtime.aggregator.delivery.router import Router
from device_runtime.aggregator.errors import NoContributions
from device_runtime.aggregator.intake.limits import MOST_DEVICES, BoundedInbox
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.link_events import Connected, Event, Will

from .ports import Pulse
from .service import Service

Publish = Callable[[str, bytes, bool], object]
"""Of a link: topic, payload, and whether it is retained."""

LOOK_S = 0.2
"""Seconds between looks at whether all have ended, while nothing comes in. Nobody waits for longer: a signal
that comes just before the main thread begins to wait, or to another thread, does not end a wait.
"""


class Lodger:
    """One task, its inbox, and the clock that its service looks at. `stop` ends it.

    `gave_up`: why its run was given up, if it was.
    """

    def __init__(self, task: Task, stop: threading.Event) -> None:
        self.task = task
        self.inbox = BoundedInbox()
        self.pulse = Pulse()
        self.farewell: Will | None = None
        self.gave_up: NoContributions | None = None
        self.round = 0
        self.done = False
        self._stop = stop
        self._error: BaseException | None = None
        self._opened, self._begun = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def open(self, make: Callable[[], Service]) -> None:
        """`make` its service, in the thread that will run it: its run folder is ours when this returns.

        Raises what Service raises.
        """
        name = f"task {self.task.name}"
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._error:
            raise self._error

    def begin(self) -> None:
        """The link is there: serve."""
        self._begun.set()

    def end(self) -> None:
        """Wait until the task is done, or it has stopped. Raises what Service.run raises."""
        self._begun.set()
        while self._thread and self._thread.is_alive():
            self._thread.join(LOOK_S)
        if self._error:
            raise self._error

    def _run(self, make: Callable[[], Service]) -> None:
        try:
            with closing(make()) as service:
                self._opened.set()
                self._begun.wait()
                if self._stop.is_set():
                    return
                try:
                    service.run(self._stop)
                except NoContributions as error:  # the other tasks go on
                    self.gave_up = error
                self.farewell = service.farewell()
                self.round, self.done = service.state.round, service.state.phase == "done"
        except BaseException as error:  # whatever it is, it ends the process: `end` raises it there
            self._error = error
            self._stop.set()
        finally:
            self._opened.set()


def inbox_of(lodgers: Sequence[Lodger]) -> queue.SimpleQueue[Event]:
    """What the link is to fill: that of a task alone needs no routing."""
    return lodgers[0].inbox if len(lodgers) == 1 else BoundedInbox()


def serve(
    lodgers: Sequence[Lodger], inbox: queue.SimpleQueue[Event], publish: Publish, most: int = MOST_DEVICES
) -> None:
    """Hand on what comes into `inbox_of` them until all are done or stopped; `publish` meanwhile, also to a
    broker that may have forgotten it, that those are done which are. `most` devices are known at a time.

    Raises what the first of them raised that did.
    """
    for lodger in lodgers:
        lodger.begin()
    if len(lodgers) > 1:
        by_name = {lodger.task.name: lodger for lodger in lodgers}
        inboxes = {name: lodger.inbox for name, lodger in by_name.items()}
        router = Router(inboxes, lambda name: not by_name[name].running, most)
        _route(router, by_name, inbox, publish)
    for lodger in lodgers:
        lodger.end()


def _route(
    router: Router, lodgers: Mapping[str, Lodger], inbox: queue.SimpleQueue[Event], publish: Publish
) -> None:
    said: set[str] = set()
    while any(lodger.running for lodger in lodgers.values()):
        with suppress(queue.Empty):
            event = inbox.get(timeout=LOOK_S)
            if isinstance(event, Connected):
                said.clear()
            router.route(event)
        for name, lodger in lodgers.items():
            if lodger.farewell and name not in said:
                publish(lodger.farewell.topic, lodger.farewell.payload, lodger.farewell.retain)
                said.add(name)


def silence_s(lodgers: Sequence[Lodger]) -> float:
    """Seconds since the loop looked that has been quiet for longest, of those that still run."""
    return max((lodger.pulse.silence_s for lodger in lodgers if lodger.running), default=0.0)
