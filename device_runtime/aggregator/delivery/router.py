"""Routes the messages of one link to the tasks that share it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from device_runtime.aggregator.limits import MOST_DEVICES, KnownDevices
from device_runtime.aggregator.views.text import printable
from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Event, Received
from device_runtime.broker.wire.messages import (
    Blob,
    Contribution,
    Get,
    Hello,
    Plan,
    State,
    decode,
    device_message_in,
    encode,
)

log = logging.getLogger(__name__)

TASK_MESSAGES: Mapping[str, type[Plan] | type[Contribution]] = {
    "plan": Plan,
    "contribution": Contribution,
}
"""Topic leaves whose messages name their task: a device may still answer for a task that it has left."""
MOST_BLOBS = 8
"""The most contributions of a device whose blobs are remembered with their task."""


@dataclass
class _DeviceEntry:
    """A device that the router knows.

    early_state: its presence message, until it has a task. blobs: the task of each blob that is fetched from
    it, by hash.
    """

    task: str = ""
    online: bool = False
    early_state: Received | None = None
    blobs: dict[bytes, str] = field(default_factory=dict)


class EventQueue(Protocol):
    """The part of `queue.SimpleQueue` that is used here."""

    def put(self, item: Event, /) -> None: ...


@dataclass(frozen=True)
class HostedTasks:
    """What the router asks about a task, by its name.

    is_over: whether it is over. answer: answers a device that asks for such a task. has: whether it has a
    blob.
    """

    is_over: Callable[[str], bool] = lambda _: False
    answer: Callable[[str, str], None] = lambda _task, _device: None
    has: Callable[[str, Blob], bool] = lambda _task, _blob: False


class Router:
    """Puts each message into the inbox of its task.

    A device is in the task that its hello names or, if it names none, in the first task that is not over, in
    the order of `inboxes`. Until then its retained presence is held back. A device that changes its task has
    left the one before, but contributions that it made for that task still go there, with their blocks.
    """

    def __init__(
        self,
        inboxes: Mapping[str, EventQueue],
        tasks: HostedTasks = HostedTasks(),
        most: int = MOST_DEVICES,
        helpers: Mapping[str, Collection[str]] = MappingProxyType({}),
    ) -> None:
        """At most `most` devices are known at a time.

        helpers: the tasks of each mask helper, by its name; all of them hear it, as it says no hello.
        """
        self._inboxes, self._helpers = inboxes, helpers
        self._over, self._answer, self._has = tasks.is_over, tasks.answer, tasks.has
        self._devices: dict[str, _DeviceEntry] = {}
        self._known_devices = KnownDevices(
            lambda device: not self._devices[device].online, self._devices.pop, most
        )

    def route(self, event: Event) -> None:
        """Put an event into the inboxes that it is for; a message for no task is dropped with a log line."""
        if not isinstance(event, Received):
            self._put(self._inboxes, event)
            return
        try:
            self._received(event)
        except BrokerError as error:
            log.warning("message on %s dropped: %s", printable(event.topic), printable(str(error)))

    def _received(self, event: Received) -> None:
        address = topics.parse(event.topic)
        device = address.device
        if device in self._helpers:
            self._put(self._helpers[device], event)
            return
        if not self._known_devices.lets_in(device):
            return
        entry = self._devices.setdefault(device, _DeviceEntry())
        if address.leaf == "hello" and not event.retain:
            self._hello(device, event)
        elif address.leaf in TASK_MESSAGES:
            self._put(
                [self._own(entry, decode(device_message_in(event.payload), TASK_MESSAGES[address.leaf]))],
                event,
            )
        elif address.leaf == "block" and address.sha in entry.blobs:
            self._put([entry.blobs[address.sha]], event)
        elif address.leaf == "state" and event.payload:  # an empty payload clears the retained message
            entry.online = decode(event.payload, State).online
            if entry.task:
                self._put([entry.task], event)
            else:
                entry.early_state = event
        elif entry.task:
            self._put([entry.task], event)
        elif address.leaf == "get":
            self._put([self._holder(device, decode(event.payload, Get).blob)], event)

    def _holder(self, device: str, blob: Blob) -> str:
        """The task that answers a device that is in none yet: one that has the blob, else its first."""
        return next((task for task in self._inboxes if self._has(task, blob)), self._first(device))

    def _own(self, entry: _DeviceEntry, message: Plan | Contribution) -> str:
        """The task that a message names; remembered, so that blocks of the message's blob go to that task."""
        if isinstance(message, Contribution) and message.blob:
            blobs = entry.blobs
            blobs.pop(message.blob.sha, None)
            while len(blobs) >= MOST_BLOBS:
                del blobs[next(iter(blobs))]
            blobs[message.blob.sha] = message.task
        return message.task

    def _hello(self, device: str, event: Received) -> None:
        hello = decode(device_message_in(event.payload), Hello)
        task = hello.task or self._first(device)
        if task not in self._inboxes:
            tasks = ", ".join(self._inboxes)
            log.warning("%s asks for task %s; this aggregator has tasks %s", device, printable(task), tasks)
            return
        entry = self._devices[device]
        before, entry.task, entry.online = entry.task, task, True
        if before not in ("", task):
            gone = State(boot=hello.boot, online=False, leaving=True)
            self._put([before], Received(topics.up(device, "state"), encode(gone), False))
        if entry.early_state:
            self._put([task], entry.early_state)
            entry.early_state = None
        if self._over(task):
            self._answer(task, device)
        self._put([task], event)

    def _first(self, device: str) -> str:
        """The task of a device that names none: its current one, or the first that is not over."""
        here = self._devices[device].task
        if here and not self._over(here):
            return here
        return next((task for task in self._inboxes if not self._over(task)), next(iter(self._inboxes)))

    def _put(self, tasks: Iterable[str], event: Event) -> None:
        for name in tasks:
            if name not in self._inboxes:
                log.warning("message for task %s dropped: no such task", printable(name))
            elif not self._over(name):  # the inbox of a finished task is no longer read
                self._inboxes[name].put(event)
