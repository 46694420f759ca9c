"""Sends a link's messages as the broker takes them, and knows which it has not acknowledged.

Where the broker's packets are smaller than a message, it goes in pieces.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import paho.mqtt.client as paho

from .link_events import packet_bytes, qos_of
from .mqtt_client import MqttClient
from .pieces import SMALLEST, DroppedBlocks, PacketLimit, TooLarge, cut

log = logging.getLogger(__name__)


@dataclass
class SentMessage:
    """A message with QoS 1, and what paho says of its packets: one, or one for each piece.

    largest: bytes of the largest of its packets.
    """

    topic: str
    payload: bytes
    retain: bool
    largest: int = 0
    packets: list[paho.MQTTMessageInfo] = field(default_factory=list)

    @property
    def acknowledged(self) -> bool:
        return all(packet.is_published() for packet in self.packets)


class InFlight:
    """Messages that paho has and the broker has not acknowledged (PUBACK), in the order of publishing.

    They are on their way, or wait to be sent. Not thread-safe. `largest_acknowledged`: bytes of the largest
    packet that was acknowledged.
    """

    def __init__(self) -> None:
        self.largest_acknowledged = 0
        self._sent: deque[SentMessage] = deque()
        self._bytes = 0

    def add(self, message: SentMessage) -> None:
        """Note a message that paho has taken, connected or not."""
        for packet in message.packets:
            packet.rc = paho.MQTT_ERR_SUCCESS  # published offline it is sent later, but keeps its error code
        self._forget()
        self._sent.append(message)
        self._bytes += len(message.payload)

    def total(self) -> int:
        """Bytes from the first unacknowledged message on; acknowledged ones behind it count too."""
        self._forget()
        return self._bytes

    def count(self, topic: str = "") -> int:
        """How many messages are not acknowledged: on this topic, or on any."""
        self._forget()
        return sum(topic in ("", message.topic) and not message.acknowledged for message in self._sent)

    def largest(self) -> int:
        """Bytes of the largest packet that is not acknowledged, sent or not."""
        self._forget()
        return max((message.largest for message in self._sent if not message.acknowledged), default=0)

    def take_all(self) -> list[SentMessage]:
        """Take out what is not acknowledged, in its order."""
        self._forget()
        left = [message for message in self._sent if not message.acknowledged]
        self._sent.clear()
        self._bytes = 0
        return left

    def note_acknowledged(self) -> int:
        """Look what has been acknowledged. Returns `largest_acknowledged`."""
        for message in self._sent:
            if message.largest > self.largest_acknowledged and message.acknowledged:
                self.largest_acknowledged = message.largest
        self._forget()
        return self.largest_acknowledged

    def _forget(self) -> None:
        while self._sent and self._sent[0].acknowledged:
            gone = self._sent.popleft()
            self._bytes -= len(gone.payload)
            self.largest_acknowledged = max(self.largest_acknowledged, gone.largest)


MOST_SAID = 100
"""Lines that are said once each, at most."""


class Outgoing:
    """The messages of one link. May be used from any thread.

    `most_bytes` bounds the messages that the broker has not acknowledged. `most_qos`, `retains`: what the
    broker can do; `limit`: how large a packet it takes.
    """

    def __init__(self, client: MqttClient, most_bytes: int) -> None:
        self.limit = PacketLimit()
        self.most_qos, self.retains = 1, True
        self._client, self._most_bytes = client, most_bytes
        self._drops = DroppedBlocks()
        self._in_flight = InFlight()
        self._lock = threading.RLock()
        self._reasons: set[str] = set()

    def publish(self, topic: str, payload: bytes, retain: bool) -> bool:
        """See `Link.publish`."""
        with self._lock:
            if self._in_flight.total() + len(payload) > self._most_bytes:
                return False
            self._look_for_drops(topic, payload)
            return self._send(topic, payload, retain)

    def waiting_bytes(self) -> int:
        """Bytes of the messages that the broker has not acknowledged."""
        with self._lock:
            return self._in_flight.total()

    def unacknowledged(self, topic: str = "") -> int:
        """How many messages the broker has not acknowledged: on this topic, or on any."""
        with self._lock:
            return self._in_flight.count(topic)

    def fit(self) -> None:
        """Give paho the waiting messages anew, if some are larger than the broker takes."""
        with self._lock:
            if self.limit.most is not None and self._in_flight.largest() > self.limit.most:
                self._client.forget_messages()
                for message in self._in_flight.take_all():
                    self._send(message.topic, message.payload, message.retain)

    def learn(self, too_large: bool) -> bool:
        """Try smaller packets if the connection ended in its largest; returns whether it may have.

        `too_large`: the broker said so.
        """
        largest = self._client.largest_sent
        with self._lock:
            self.limit.acknowledged(self._in_flight.note_acknowledged())
        suspicious = self.limit.suspicious(largest)
        if self.limit.refused(largest) if too_large else self.limit.closed(largest):
            log.warning(
                "the broker at %s ends the connection at packets of %d bytes: larger messages go in pieces "
                "of at most %d bytes from now on",
                self._client.broker,
                largest,
                self.limit.most,
            )
            self.fit()
        elif self.limit.hopeless and self.worth_saying(str(self.limit.hopeless)):
            log.error(
                "the broker at %s ends the connection at packets of %d bytes, and none smaller are of use: "
                "it must take packets of %d bytes at least",
                self._client.broker,
                self.limit.hopeless,
                2 * SMALLEST,
            )
        return suspicious

    def worth_saying(self, what: str) -> bool:
        """Whether this has not been said."""
        if what in self._reasons or len(self._reasons) >= MOST_SAID:
            return False
        self._reasons.add(what)
        return True

    def _look_for_drops(self, topic: str, payload: bytes) -> None:
        """Try smaller packets where a message is sent again and again though the broker acknowledged it."""
        size = min(len(payload), self.limit.most or len(payload))
        if not self._drops.suspicious(topic, payload, time.monotonic()) or size <= DroppedBlocks.LEAST_BYTES:
            return
        if not self._in_flight.count(topic) and self.limit.refused(size):
            log.warning(
                "the broker at %s acknowledged %s several times to no effect: in case it drops what is too "
                "large, messages go in pieces of at most %d bytes from now on",
                self._client.broker,
                topic,
                self.limit.most,
            )

    def _send(self, topic: str, payload: bytes, retain: bool) -> bool:
        """Give paho a message, in pieces where the broker's packets are smaller."""
        qos, mqtt5 = min(qos_of(topic, payload), self.most_qos), self._client.speaks_mqtt5
        parts = [(topic, payload)]
        if self.limit.most is not None:
            try:
                parts = cut(topic, payload, qos, self.limit.most, mqtt5, whole=retain)
            except TooLarge as error:
                if error.size >= (self.limit.too_large or 0):
                    if self.worth_saying(topic):
                        log.error(
                            "not sent: %s; raise the packet limit of the broker at %s",
                            error,
                            self._client.broker,
                        )
                    return True
        largest = max(packet_bytes(*part, qos, mqtt5) for part in parts)
        message = SentMessage(topic, payload, retain, largest)
        for part in parts:
            sent = self._client.publish(*part, qos=qos, retain=retain and self.retains)
            if sent.rc == paho.MQTT_ERR_QUEUE_SIZE:
                return False
            message.packets.append(sent)
        if qos:
            self._in_flight.add(message)
        return True
