"""Runs several tasks in one process: each has its own service, run folder and thread.

Incoming messages are routed to the task that they are for.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from device_runtime.aggregator.delivery.router import HostedTasks, Router
from device_runtime.aggregator.errors import NoContributions
from device_runtime.aggregator.limits import MOST_DEVICES, BoundedInbox
from device_runtime.aggregator.machine.ports import LoopClock
from device_runtime.aggregator.tasks.task import Task
from device_runtime.broker.wire.link_events import Connected, Event, Will
from device_runtime.broker.wire.messages import Blob

from .service import Service

Publish = Callable[[str, bytes, bool], object]
"""`Link.publish`: topic, payload, and whether it is retained."""

LOOK_S = 0.2
"""The most seconds that the main thread waits for a message, or for a thread to end, at a time.

A longer wait would delay the end: a signal that comes just before the wait begins, or to another thread, does
not interrupt it.
"""


@dataclass(frozen=True)
class TaskEnd:
    """How a task ended. `gave_up`: the error if it is abandoned.

    withdrawal: clears its retained offer if it is done or abandoned. last_word: tells a device that the task
    is done.
    """

    round: int = 0
    done: bool = False
    withdrawal: Will | None = None
    last_word: Callable[[str], Will] | None = None
    gave_up: NoContributions | None = None


class TaskThread:
    """One task with its thread, its inbox, and the clock of its service. The event `stop` ends it."""

    def __init__(self, task: Task, stop: threading.Event) -> None:
        self.task = task
        self.inbox = BoundedInbox()
        self.loop_clock = LoopClock()
        self.ended = TaskEnd()
        self._stop = stop
        self._error: BaseException | None = None
        self._opened, self._begun = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.has: Callable[[Blob], bool] = lambda _: False
        """Whether the task has a blob, once it is open."""

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def open(self, make: Callable[[], Service]) -> None:
        """Starts the thread, which calls `make` for its service; the run folder is open when this returns.

        Raises what Service raises.
        """
        name = f"task {self.task.name}"
        self._thread = threading.Thread(target=self._run, args=(make,), name=name, daemon=True)
        self._thread.start()
        self._opened.wait()
        if self._error:
            raise self._error

    def begin(self) -> None:
        """Lets the service run, now that the link is there."""
        self._begun.set()

    def end(self) -> None:
        """Waits until the task is done or has stopped. Raises what Service.run raises."""
        self._begun.set()
        while self._thread and self._thread.is_alive():
            self._thread.join(LOOK_S)
        if self._error:
            raise self._error

    def _run(self, make: Callable[[], Service]) -> None:
        try:
            with closing(make()) as service:
                self.has = service.has
                self._opened.set()
                self._begun.wait()
                if self._stop.is_set():
                    return
                gave_up = None
                try:
                    service.run(self._stop)
                except NoContributions as error:  # the other tasks go on
                    gave_up = error
                state = service.state
                done, last = state.phase == "done", service.last_word()
                self.ended = TaskEnd(state.round, done, service.withdrawal(), last, gave_up)
        except BaseException as error:  # whatever it is, it ends the process: `end` raises it there
            self._error = error
            self._stop.set()
        finally:
            self._opened.set()


def inbox_of(threads: Sequence[TaskThread]) -> BoundedInbox:
    """The inbox for the link: that of the only task, or a new one whose messages `serve` routes."""
    return threads[0].inbox if len(threads) == 1 else BoundedInbox()


def serve(
    threads: Sequence[TaskThread], inbox: queue.SimpleQueue[Event], publish: Publish, most: int = MOST_DEVICES
) -> None:
    """Routes messages from `inbox` (of `inbox_of`) to the tasks until all are done or stopped.

    `publish` clears the retained offer of each task that is over, and again after a reconnection, and answers
    devices that ask for such a task. At most `most` devices are known at a time. Raises the error of the
    first task that failed.
    """
    for thread in threads:
        thread.begin()
    if len(threads) > 1:
        by_name = {thread.task.name: thread for thread in threads}
        inboxes = {name: thread.inbox for name, thread in by_name.items()}

        def send_last_word(task: str, device: str) -> None:
            if last_word := by_name[task].ended.last_word:
                answer = last_word(device)
                publish(answer.topic, answer.payload, answer.retain)

        tasks = HostedTasks(
            lambda name: not by_name[name].running, send_last_word, lambda name, blob: by_name[name].has(blob)
        )
        router = Router(inboxes, tasks, most, _helpers(by_name))
        _route(router, by_name, inbox, publish)
    for thread in threads:
        thread.end()


def _helpers(threads: Mapping[str, TaskThread]) -> dict[str, list[str]]:
    """The tasks of each mask helper, by its name."""
    tasks: dict[str, list[str]] = {}
    for name, thread in threads.items():
        for helper in thread.task.masks.keys if thread.task.masks else ():
            tasks.setdefault(helper.name, []).append(name)
    return tasks


def _route(
    router: Router, threads: Mapping[str, TaskThread], inbox: queue.SimpleQueue[Event], publish: Publish
) -> None:
    withdrawals: set[str] = set()
    while any(thread.running for thread in threads.values()):
        with suppress(queue.Empty):
            event = inbox.get(timeout=LOOK_S)
            if isinstance(event, Connected):
                withdrawals.clear()
            router.route(event)
        for name, thread in threads.items():
            if (will := thread.ended.withdrawal) and name not in withdrawals:
                publish(will.topic, will.payload, will.retain)
                withdrawals.add(name)


def silence_s(threads: Sequence[TaskThread]) -> float:
    """The longest time in seconds since the loop of a running task last looked at its clock."""
    return max((thread.loop_clock.silence_s for thread in threads if thread.running), default=0.0)
