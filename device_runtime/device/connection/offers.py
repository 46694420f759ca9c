"""Reads and checks the offers that a device receives, and notes when each round closes."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import compact_round, topics
from device_runtime.broker.wire.compact_round import UnknownRoundBefore
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.messages import RELEASE, Base, MessageError, Offer
from device_runtime.broker.wire.topics import TopicError, check_task

from .trust import Trust

if TYPE_CHECKING:
    from .connecting import Connection

log = logging.getLogger(__name__)

NUMBERED = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}")
EXTENDED_S = 1.0
"""A deadline that is later by at least so many seconds is a new one; less is the message's delay."""


@dataclass(frozen=True)
class OpenRound:
    """An open round, and when it closes on the device's own clock, in seconds.

    `member` is the member of the family whose base is fetched, "" the main model; None: not decided yet.
    """

    offer: Offer
    closes_at: float
    member: str | None = None

    @property
    def base(self) -> Base:
        """The base of the chosen member."""
        return next((m.base for m in self.offer.family if m.name == self.member), self.offer.base)

    def follows(self, earlier: OpenRound) -> bool:
        """Whether this is the same round with the same deadline, offered again."""
        now, then = self.offer, earlier.offer
        is_same = (now.run, now.round) == (then.run, then.round)
        return is_same and self.closes_at - earlier.closes_at < EXTENDED_S


def opened(offer: Offer, came: float) -> OpenRound:
    """The round of an offer that came at the time `came`, in seconds on the device's clock.

    Raises MessageError for an invalid offer.
    """
    where = f"offer of round {offer.round} of {offer.task!r}"
    try:
        check_task(offer.task)
    except TopicError:
        raise MessageError(f"{where}: that is no name of a task") from None
    for name, seconds in (("remaining_s", offer.remaining_s), ("deadline_s", offer.deadline_s)):
        if not isfinite(seconds) or seconds < 0:
            raise MessageError(f"{where}: {name} is {seconds}, expected 0 or more seconds")
    if offer.round < 0:
        raise MessageError(f"{where}: rounds are counted from 0")
    if not 0 <= offer.seed < 2**64:
        raise MessageError(f"{where}: seed is {offer.seed}, expected 64 bits")
    names = ["", *(member.name for member in offer.family)]
    if len(set(names)) != len(names):
        raise MessageError(f"{where}: models of its family are called {names[1:]}, each needs its own")
    for base in (offer.base, *(member.base for member in offer.family)):
        if not base.checkpoint or base.steps < 0:
            raise MessageError(f"{where}: a base has no checkpoint, or {base.steps} steps")
    return OpenRound(offer, came + offer.remaining_s)


def update_advice(version: str) -> str:
    """What brings this device to the aggregator's version; empty if that is not newer, or not a version."""
    if not NUMBERED.fullmatch(version) or _numbers(version) <= _numbers(RELEASE):
        return ""
    wheel = f"device_runtime-{version}-py3-none-any.whl"
    return (
        f"the aggregator runs device-runtime {version}, this device {RELEASE}: with that version's wheel "
        f"`{sys.executable} -m pip install {wheel}` updates it, and its next start uses it"
    )


def task_title(task: str, title: str) -> str:
    """The name of a task, and its title for people if it has one, in one line."""
    return f"task {task!r} ({_line(title)})" if title else f"task {task!r}"


def task_text(offer: Offer) -> str:
    """What a task is for and what people give, in one line; empty if it does not say."""
    return _line(f"{offer.about} {offer.ask}")


def _line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


TASKS = 64
"""Tasks whose latest offer is remembered."""


class OfferStream:
    """Turns messages on offer topics into whole offers, as a compact one only says what is new.

    Remembers the latest offer of each task. `trust` says whose offers count.
    """

    def __init__(self, trust: Trust) -> None:
        self.over = False
        """Whether, by the last message, earlier contributions without a receipt no longer count."""
        self._trust = trust
        self._latest: dict[str, Offer] = {}

    def offer(self, topic: str, payload: bytes, retained: bool = False, task: str = "") -> Offer:
        """The offer that came, or that a compact message derives from the one before.

        `task` is used where the topic does not name one. Raises MessageError for a message that must not be
        acted on, UnknownRoundBefore if the whole offer must be asked for.
        """
        self.over = False
        if retained and not topics.is_offer(topic):
            raise MessageError(f"unexpected retained offer on {topic}")
        if compact_round.is_compact_offer(payload):
            of = topic.removeprefix(topics.offer("")) if topics.is_offer(topic) else task
            return self._next(of, topic, payload)
        offer = self._trust.offer(topic, payload, retained)
        latest = self._latest.get(offer.task)
        if not (retained and latest and latest.run == offer.run and offer.round < latest.round):
            self._keep(offer)
        return offer

    def _next(self, task: str, topic: str, payload: bytes) -> Offer:
        before = self._latest.get(task)
        if before is None:
            raise UnknownRoundBefore(f"a round of {task!r} is open that follows one which is not known here")
        next_round = self._trust.next(topic, before.run, payload)
        if next_round.round <= before.round:
            raise MessageError(f"round {next_round.round} of {task!r} was heard of before")
        del self._latest[task]  # if this fails, the whole offer is asked for
        offer = compact_round.full_offer(before, next_round)
        self._keep(offer)
        self.over = next_round.over
        return offer

    def _keep(self, offer: Offer) -> None:
        self._latest.pop(offer.task, None)
        self._latest[offer.task] = offer
        while len(self._latest) > TASKS:
            del self._latest[next(iter(self._latest))]


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
    from device_runtime.broker.security.access_trial import AccessTrial  # 45 kB

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
