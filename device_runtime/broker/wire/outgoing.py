"""Sends a link's messages as the broker takes them: in pieces where its packets are smaller."""

from __future__ import annotations

import logging
import threading
import time

import paho.mqtt.client as paho

from .in_flight import InFlight, SentMessage
from .link_timing import packet_bytes, qos_of
from .mqtt_client import MqttClient
from .packet_limit import SMALLEST, DroppedBlocks, PacketLimit
from .pieces import TooLarge, cut

log = logging.getLogger(__name__)

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
