"""Fetches the task that a broker offers to a device: its bundle, and the model that it serves now."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from device_runtime.broker.errors import BlobError
from device_runtime.broker.wire import topics
from device_runtime.broker.wire.compact_round import is_compact_offer
from device_runtime.broker.wire.link import Link, LinkOptions
from device_runtime.broker.wire.link_events import Event, Received
from device_runtime.broker.wire.messages import Blob, Get, MessageError, Offer, encode
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.connection.offers import opened, task_text
from device_runtime.device.connection.trust import Trust
from device_runtime.device.errors import DeviceError
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.tensors import Tensors
from device_runtime.models.errors import ModelError

from .cache import ModelCache
from .downloads import Downloads

log = logging.getLogger(__name__)

CONNECT_S = 20.0
LISTEN_S = 2.0
"""Seconds for retained offers, which a broker sends at once."""
SILENCE_S = 30.0
"""Seconds without a block after which the aggregator is taken to be away."""
ANSWER_S = 10.0
"""Seconds within which an aggregator answers at all; one that merges a round may need some."""
NO_BLOB = Blob(sha=bytes(32), size=1)
"""A blob that no aggregator has. Any answer to a request for it shows that an aggregator is there."""


class NotFetched(DeviceError):
    """No task is offered, or its model did not come."""


@dataclass(frozen=True)
class OfferedTask:
    """A task as it is offered to a device.

    family: bundles of the other models that it trains, by name. weights: of the model that it serves; None
    where these cannot be fetched. answered: whether an aggregator answers; otherwise the offer is the last
    one, which the broker keeps when an aggregator stops or is killed.
    """

    offer: Offer
    bundle: Bundle
    family: Mapping[str, Bundle]
    weights: Tensors | None
    answered: bool = True

    @property
    def text(self) -> str:
        """What the task is for and what people give, and whether an aggregator is there; may be empty."""
        stale = f"No aggregator answers: the offer of round {self.offer.round} is one that the broker keeps."
        return "\n".join(filter(None, (task_text(self.offer), "" if self.answered else stale)))


def fetch(connection: Connection, task: str, folder: Path) -> OfferedTask:
    """Fetch a task into the device's folder, without the blobs that are there already.

    task: its name; empty for the first by name. Uses a connection of its own. Raises NotFetched, BrokerError,
    ModelError.
    """
    inbox: SimpleQueue[Event] = SimpleQueue()
    filters = (topics.OFFERS, topics.down(connection.name, "#"))
    options = LinkOptions(subscriptions=filters, renewed=connection.renewed)
    link = Link(connection.url, f"{connection.client_id}-task", inbox, options)
    with closing(link):
        link.connect(CONNECT_S)
        fetching = _Fetching(link, inbox, connection, folder)
        offer = fetching.offer(task)
        return fetching.fetched(offer)


class _Fetching:
    """Fetches over a link that is connected."""

    def __init__(self, link: Link, inbox: SimpleQueue[Event], connection: Connection, folder: Path) -> None:
        self._link, self._inbox, self._connection = link, inbox, connection
        self._cache = ModelCache(folder)
        self._downloads = Downloads(self._cache.blobs, self._ask, lambda blob, seconds: None)
        self._came_at = time.monotonic()
        self._answered = False

    def offer(self, task: str) -> Offer:
        """The offer of a task, once it is known whether an aggregator is there. Raises NotFetched."""
        self._ask(Get(blob=NO_BLOB, blocks=(0,)))
        trust, offers, began_at = Trust(self._connection.key), dict[str, Offer](), time.monotonic()
        while (left := began_at + self._patience_s(bool(offers)) - time.monotonic()) > 0:
            message = self._next(left)
            if message is None:
                continue
            self._answered = self._answered or not message.retain
            if not topics.is_offer(message.topic) or not message.payload:
                continue
            try:
                if not is_compact_offer(message.payload):
                    offer = opened(trust.offer(message.topic, message.payload, message.retain), 0.0).offer
                    offers[offer.task] = offer
            except MessageError as error:
                log.warning("%s", error)
        if task and task not in offers:
            names = f"; offered are: {', '.join(sorted(offers))}" if offers else ""
            raise NotFetched(f"task {task!r} is not offered at {self._connection.url}{names}")
        if not offers:
            raise NotFetched(f"no task is offered at {self._connection.url} yet")
        return offers[task or min(offers, key=lambda name: (offers[name].done, name))]

    def _patience_s(self, offered: bool) -> float:
        """How long to listen in all: for offers, and if there are any also for an answer."""
        return ANSWER_S if offered and not self._answered else LISTEN_S

    def fetched(self, offer: Offer) -> OfferedTask:
        """The task of an offer. Raises NotFetched, BrokerError, ModelError."""
        self._complete(self._cache.missing_bundles(offer))
        bundle = self._cache.bundle(offer.bundle)
        family = {member.name: self._cache.bundle(member.bundle) for member in offer.family}
        try:
            self._cache.take_parts(bundle, offer.base)
            self._complete(self._cache.missing(offer.base))
            weights = self._cache.base(offer.base, bundle.manifest)
        except (BlobError, ModelError, DeviceError) as error:
            log.info("the model that task %r serves was not fetched: %s", offer.task, error)
            return OfferedTask(offer, bundle, family, None, self._answered)
        return OfferedTask(offer, bundle, family, weights, self._answered)

    def _complete(self, blobs: Iterable[Blob]) -> None:
        """Wait until all blobs are here. Raises NotFetched, BlobError."""
        self._came_at = time.monotonic()
        while missing := [blob for blob in blobs if not self._cache.blobs.has(blob)]:
            if not self._answered:
                raise NotFetched(f"no aggregator answers at {self._connection.url}: is `serve` running?")
            if not self._downloads.advance(missing, time.monotonic()):
                raise NotFetched("the aggregator does not have what it offers any more: try again")
            message = self._next(0.1)
            if message is not None and not topics.is_offer(message.topic):
                self._take(message)
            if time.monotonic() - self._came_at > SILENCE_S:
                raise NotFetched(f"the aggregator sent nothing for {SILENCE_S:.0f} s: is `serve` running?")

    def _take(self, message: Received) -> None:
        address = topics.parse(message.topic)
        if address.leaf == "block":
            self._came_at = time.monotonic()
            self._downloads.received(address.sha, address.index, message.payload, self._came_at)

    def _next(self, seconds: float) -> Received | None:
        """The next message; None if none comes in this time, or something else happens."""
        try:
            event = self._inbox.get(timeout=seconds)
        except Empty:
            return None
        return event if isinstance(event, Received) and event.topic else None

    def _ask(self, get: Get) -> None:
        self._link.publish(topics.up(self._connection.name, "get"), encode(get))
