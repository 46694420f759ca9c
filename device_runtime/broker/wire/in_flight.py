"""The messages that a link has sent or is to send, and that the broker has not acknowledged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import paho.mqtt.client as paho


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

    def of_packet(self, number: int) -> SentMessage | None:
        """The message that a packet belongs to, by its packet id."""
        for message in self._sent:
            if any(packet.mid == number for packet in message.packets):
                return message
        return None

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
