"""Several tasks on one link: which of them a message from a device is for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from broker import topics
from broker.errors import BrokerError
from broker.events import Event, Received
from broker.messages import Contribution, Hello, Plan, State, decode, encode

from .text import printable

log = logging.getLogger(__name__)

OWN: Mapping[str, type[Plan] | type[Contribution]] = {"plan": Plan, "contribution": Contribution}
"""Leaves whose messages name their task themselves: a device may still answer for one that it has left."""
MOST_BLOBS = 8
"""Contributions of a device of which it is known for which task they are pulled."""


class Inbox(Protocol):
    """The part of `queue.SimpleQueue` that is used here."""

    def put(self, item: Event, /) -> None: ...


class Router:
    """From one link to the inboxes of the tasks, which are in the order in which they were given.

    A device is in the task that its hello names or, where it names none, in the first that is not over. What
    the broker kept of its presence from before is held until then. One that goes to another task has left
    the one before; what it had made for that still goes there, with its blocks.
    """

    def __init__(self, inboxes: Mapping[str, Inbox], over: Callable[[str], bool] = lambda _: False) -> None:
        """`over` says whether a task is done."""
        self._inboxes = inboxes
        self._over = over
        self._task: dict[str, str] = {}
        self._held: dict[str, Received] = {}
        self._blobs: dict[str, dict[bytes, str]] = {}

    def route(self, event: Event) -> None:
        """Hand it on; what is for no task is dropped with a log line."""
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
        if address.leaf == "hello" and not event.retain:
            self._hello(device, event)
        elif len(self._inboxes) == 1:
            self._put(self._inboxes, event)
        elif address.leaf in OWN:
            self._put([self._own(device, decode(event.payload, OWN[address.leaf]))], event)
        elif address.leaf == "block" and address.sha in self._blobs.get(device, {}):
            self._put([self._blobs[device][address.sha]], event)
        elif device in self._task:
            self._put([self._task[device]], event)
        elif address.leaf == "state" and event.payload:  # else it is cleared
            decode(event.payload, State)
            self._held[device] = event

    def _own(self, device: str, message: Plan | Contribution) -> str:
        """The task that a message names; of its blob, if it has one, too."""
        if isinstance(message, Contribution) and message.blob:
            blobs = self._blobs.setdefault(device, {})
            blobs.pop(message.blob.sha, None)
            while len(blobs) >= MOST_BLOBS:
                del blobs[next(iter(blobs))]
            blobs[message.blob.sha] = message.task
        return message.task

    def _hello(self, device: str, event: Received) -> None:
        wanted = decode(event.payload, Hello).task or self._first(device)
        if wanted not in self._inboxes:
            known = ", ".join(self._inboxes)
            log.warning("%s asks for task %s; there is %s", device, printable(wanted), known)
            return
        before = self._task.get(device)
        if before not in (None, wanted):
            gone = State(boot=decode(event.payload, Hello).boot, online=False)
            self._put([before], Received(topics.up(device, "state"), encode(gone), False))
        self._task[device] = wanted
        if held := self._held.pop(device, None):
            self._put([wanted], held)
        self._put([wanted], event)

    def _first(self, device: str) -> str:
        """For a device that names no task: where it is, or the first that is not over."""
        here = self._task.get(device)
        if here is not None and not self._over(here):
            return here
        return next((task for task in self._inboxes if not self._over(task)), next(iter(self._inboxes)))

    def _put(self, tasks: Iterable[str | None], event: Event) -> None:
        for task in tasks:
            name = task or ""
            if name not in self._inboxes:
                log.warning("message for task %s dropped: it is not here", printable(name))
            elif not self._over(name):  # else nobody takes it out again
                self._inboxes[name].put(event)
