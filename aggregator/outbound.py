"""What goes to devices; counted as it goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from broker import messages, small, topics
from broker.blobs import Blobs
from broker.messages import Get, Message, Offer
from broker.pact import Pact
from broker.transfer import answer

from .ports import Agree, Seal, Wire
from .traffic import Traffic

log = logging.getLogger(__name__)


class Outbound:
    """Never waits. What the link has no room for is dropped with a log line: devices ask or send again."""

    def __init__(self, link: Wire, traffic: Traffic, seal: Seal, agree: Agree | None = None) -> None:
        self._link = link
        self._traffic = traffic
        self._seal, self._agree = seal, agree
        self._pacts: dict[str, Pact] = {}

    def agree(self, device: str, key: bytes) -> None:
        """By what its hello says, if anything. Raises MessageError for what is no key."""
        self.forget(device)
        if self._agree and key:
            self._pacts[device] = self._agree(key)

    def forget(self, device: str) -> None:
        """A device that is not known any longer."""
        self._pacts.pop(device, None)

    def offer(self, device: str, offer: Offer) -> None:
        """An offer to one device."""
        topic = topics.down(device, "task")
        self._send((device,), topic, self._seal(topic, offer))

    def send(self, device: str, leaf: str, message: Message) -> None:
        """A message to one device."""
        self._send((device,), topics.down(device, leaf), messages.encode(message))

    def blocks(self, device: str, get: Get, blobs: Blobs) -> None:
        """The blocks that a device asked for, or word that the blob is not here."""
        for index, data in answer(blobs, get):
            self._send((device,), topics.down(device, topics.block(get.blob.sha, index)), data)

    def broadcast(self, offer: Offer, online: Iterable[str]) -> None:
        """The retained offer; counted for every device that is online."""
        topic = topics.offer(offer.task)
        payload = self._seal(topic, offer)
        if self._link.publish(topic, payload, retain=True):
            self._traffic.down(online, topic, payload)
        else:
            log.warning("too much waits to be sent: the offer of round %d is not", offer.round)

    def next(self, offer: Offer, made: small.Next, online: Iterable[str]) -> None:
        """That the round of an offer is open, to who has the one before; not retained.

        Devices that know our key take nothing that is said to all without a signature, which is longer than
        all else: each is told by itself, with whom nothing is agreed on the whole offer.
        """
        payload = small.encode_next(made)
        if self._agree is None:
            self._send(online, topics.offer(offer.task), payload)
            return
        for device in sorted(online):
            if pact := self._pacts.get(device):
                topic = topics.down(device, "n")
                word = pact.word(topic, offer.run, payload)
                self._send((device,), topic, small.with_word(payload, word))
            else:
                self.offer(device, offer)

    def clear_state(self, device: str) -> None:
        """Have the broker forget the presence of a device that is gone."""
        self._link.publish(topics.up(device, "state"), b"", retain=True)

    def _send(self, devices: Iterable[str], topic: str, payload: bytes) -> None:
        if self._link.publish(topic, payload):
            self._traffic.down(devices, topic, payload)
        else:
            log.warning("too much waits to be sent: %s is not", topic)
