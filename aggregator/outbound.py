"""What goes to devices; counted as it goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker import messages, small, topics
from broker.blobs import Blobs
from broker.messages import Get, Message, Offer
from broker.transfer import answer

from .ports import Seal, SealNext, Wire
from .traffic import Traffic

log = logging.getLogger(__name__)


class Outbound:
    """Never waits. What the link has no room for is dropped with a log line: devices ask or send again."""

    def __init__(self, link: Wire, traffic: Traffic, seal: Seal, seal_next: SealNext | None = None) -> None:
        self._link = link
        self._traffic = traffic
        self._seal, self._seal_next = seal, seal_next

    def offer(self, device: str, offer: Offer) -> None:
        """An offer to one device."""
        topic = topics.down(device, "task")
        self._send(device, topic, self._seal(topic, offer))

    def send(self, device: str, leaf: str, message: Message) -> None:
        """A message to one device."""
        self._send(device, topics.down(device, leaf), messages.encode(message))

    def blocks(self, device: str, get: Get, blobs: Blobs) -> None:
        """The blocks that a device asked for, or word that the blob is not here."""
        for index, data in answer(blobs, get):
            self._send(device, topics.down(device, topics.block(get.blob.sha, index)), data)

    def broadcast(self, offer: Offer, online: Iterable[str]) -> None:
        """The retained offer; counted for every device that is online."""
        topic = topics.offer(offer.task)
        payload = self._seal(topic, offer)
        if self._link.publish(topic, payload, retain=True):
            self._traffic.down(online, topic, payload)
        else:
            log.warning("too much waits to be sent: the offer of round %d is not", offer.round)

    def next(self, offer: Offer, made: small.Next, online: Iterable[str]) -> None:
        """That the round of an offer is open, to who has the one before; not retained."""
        topic, payload = topics.offer(offer.task), small.encode_next(made)
        if self._seal_next:
            payload = self._seal_next(topic, offer.run, payload)
        if self._link.publish(topic, payload):
            self._traffic.down(online, topic, payload)
        else:
            log.warning("too much waits to be sent: round %d is not offered", offer.round)

    def clear_state(self, device: str) -> None:
        """Have the broker forget the presence of a device that is gone."""
        self._link.publish(topics.up(device, "state"), b"", retain=True)

    def _send(self, device: str, topic: str, payload: bytes) -> None:
        if self._link.publish(topic, payload):
            self._traffic.down((device,), topic, payload)
        else:
            log.warning("too much waits to be sent: %s is not", topic)
