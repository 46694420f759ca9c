"""What goes to devices; counted as it goes."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from device_runtime.aggregator.rounds.ports import Ports
from device_runtime.broker.wire import compact_round as small
from device_runtime.broker.wire import messages, topics
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Blob, Get, Message, Offer, Receipt
from device_runtime.broker.wire.session_mac import Pact

from .block_sender import Blocks
from .traffic import Traffic

log = logging.getLogger(__name__)


class Outbound:
    """Never waits. What the link has no room for is dropped with a log line: devices ask or send again.

    Blocks are sent when there is room.
    """

    def __init__(self, ports: Ports, traffic: Traffic) -> None:
        self._link = ports.link
        self._traffic = traffic
        self._seal, self._agree = ports.seal, ports.agree
        self._blocks = Blocks(self._block, ports.clock, ports.backlog)
        self._pacts: dict[str, Pact] = {}
        self._signing: set[str] = set()

    def agree(self, device: str, key: bytes, signs: bool = False) -> None:
        """By what its hello says, if anything; `signs`: the hello was signed, and its receipts are to have a
        word. Raises MessageError for what is no key.
        """
        self._pacts.pop(device, None)
        self._signing.discard(device)
        if self._agree and key:
            self._pacts[device] = self._agree(key)
            if signs:
                self._signing.add(device)

    def has_said(self, device: str, run: str, payload: bytes, word: bytes) -> bool:
        """Whether the word is the device's, on a contribution in few bytes."""
        pact = self._pacts.get(device)
        return pact is not None and pact.holds(word, topics.up(device, "c"), run, payload)

    def forget(self, device: str) -> None:
        """A device that is not known any longer."""
        self._pacts.pop(device, None)
        self._signing.discard(device)
        self._blocks.forget(device)

    def go_on(self) -> None:
        """Send blocks that wait for room."""
        self._blocks.go_on()

    def offer(self, device: str, offer: Offer) -> None:
        """An offer to one device."""
        topic = topics.down(device, "task")
        self._send((device,), topic, self._seal(topic, offer))

    def send(self, device: str, leaf: str, message: Message) -> None:
        """A message to one device."""
        self._send((device,), topics.down(device, leaf), messages.encode(message))

    def receipt(self, device: str, receipt: Receipt) -> None:
        """To one device; to one that signs with a word behind it."""
        topic, payload = topics.down(device, "receipt"), messages.encode(receipt)
        if device in self._signing:
            payload += self._pacts[device].word(topic, "", payload)
        self._send((device,), topic, payload)

    def blocks(self, device: str, get: Get, blobs: Blobs) -> None:
        """The blocks that a device asked for, or word that the blob is not here."""
        self._blocks.ask(device, get, blobs)

    def _block(self, device: str, blob: Blob, index: int, data: bytes) -> bool:
        topic = topics.down(device, topics.block(blob.sha, index))
        sent = self._link.publish(topic, data)
        if sent:
            self._traffic.down((device,), topic, data)
        return sent

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
        self.clear(topics.up(device, "state"))

    def clear(self, topic: str) -> None:
        """Have the broker forget what is retained on a topic."""
        self._link.publish(topic, b"", retain=True)

    def _send(self, devices: Iterable[str], topic: str, payload: bytes) -> None:
        if self._link.publish(topic, payload):
            self._traffic.down(devices, topic, payload)
        else:
            log.warning("too much waits to be sent: %s is not", topic)
