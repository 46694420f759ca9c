"""What was handed to paho and has no PUBACK yet: it is on its way, or waits for its turn."""

from __future__ import annotations

from collections import deque

import paho.mqtt.client as paho


class UnderWay:
    """Messages in the order in which they were published. Not thread-safe."""

    def __init__(self) -> None:
        self._sent: deque[tuple[str, int, paho.MQTTMessageInfo]] = deque()
        self._bytes = 0

    def add(self, topic: str, size: int, sent: paho.MQTTMessageInfo) -> None:
        """A message of `size` bytes that paho has taken, connected or not."""
        sent.rc = paho.MQTT_ERR_SUCCESS  # what is published offline is sent later, and its code stays
        self._forget()
        self._sent.append((topic, size, sent))
        self._bytes += size

    def total(self) -> int:
        """Their bytes; with those of messages that came after one that is not acknowledged yet."""
        self._forget()
        return self._bytes

    def count(self, topic: str = "") -> int:
        """How many the broker has not acknowledged: on this topic, or on any."""
        self._forget()
        return sum(topic in ("", one) and not sent.is_published() for one, _, sent in self._sent)

    def _forget(self) -> None:
        while self._sent and self._sent[0][2].is_published():
            self._bytes -= self._sent.popleft()[1]
