"""Warns if the wanted task is not among those that are offered at the broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.access_trial import AccessTrial
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import MessageError, Offer
from device_runtime.broker.wire.topics import TopicError

from .connecting import Connection
from .offers import opened
from .trust import Trust

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds after connecting before a device looks which tasks there are."""
LISTEN_S = 1.0
"""Seconds that it listens for retained offers, which a broker sends at once."""
AGAIN_S = 600.0
"""Seconds until it looks again, and says again what it found."""
SHOWN = 20
"""Most tasks that are named in the warning."""


def warn_if_absent(
    connection: Connection,
    task: str,
    is_member: Callable[[], bool],
    stop: threading.Event,
) -> threading.Thread:
    """Warn while `task` is not offered, until `is_member` says that the device is in it or `stop` is set.

    The device goes on waiting meanwhile, for the task may begin later. Returns the thread that looks.
    """

    def looking() -> None:
        wait_s = LOOK_S
        while not stop.wait(wait_s) and not is_member():
            wait_s = AGAIN_S
            try:
                tasks = offered_tasks(connection)
            except BrokerError as error:
                log.debug("the tasks at %s were not read: %s", connection.url, error)
                continue
            if task in tasks:
                return
            log.warning("%s", absent_warning(task, tasks))

    thread = threading.Thread(target=looking, name="other tasks", daemon=True)
    thread.start()
    return thread


def absent_warning(task: str, tasks: Mapping[str, bool]) -> str:
    """The warning that there is no such task, with the tasks that there are."""
    if not tasks:
        return f"there is no task {task!r}, nor any other: is `serve` running? Waiting for {task!r}"
    names = [f"{name} (done)" if done else name for name, done in sorted(tasks.items())[:SHOWN]]
    more = f" and {len(tasks) - SHOWN} more" if len(tasks) > SHOWN else ""
    return f"there is no task {task!r}; offered are: {', '.join(names)}{more}. Waiting for {task!r}"


def offered_tasks(connection: Connection) -> dict[str, bool]:
    """The tasks that are offered at the broker, and whether each is done; uses a connection of its own.

    Offers of an aggregator other than that of the enrolment are left out. Raises BrokerError.
    """
    with closing(AccessTrial(connection.url, f"{connection.client_id}-tasks", (topics.OFFERS,))) as trial:
        messages = trial.hear(LISTEN_S)
    trust = Trust(connection.key)
    return {offer.task: offer.done for message in messages if (offer := _offer(trust, message))}


def _offer(trust: Trust, message: Received) -> Offer | None:
    try:
        return opened(trust.offer(message.topic, message.payload), 0.0).offer
    except (MessageError, TopicError) as error:
        log.debug("offer left out: %s", error)
        return None
