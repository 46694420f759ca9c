"""What was handed to paho and has no PUBACK yet: it is on its way, or waits for its turn."""

from __future__ import annotations

from collections import deque

import paho.mqtt.client as paho


class UnderWay:
    """Messages in the order in which they were published. Not thread-safe."""

    def __init__(self) -> None:
        self._sent: deque[tuple[str, paho.MQTTMessageInfo]] = deque()

    def add(self, topic: str, sent: paho.MQTTMessageInfo) -> None:
        """A message that paho has taken, connected or not."""
        sent.rc = paho.MQTT_ERR_SUCCESS  # what is published offline is sent later, and its code stays
        self._forget()
        self._sent.append((topic, sent))

    def count(self, topic: str = "") -> int:
        """How many the broker has not acknowledged: on this topic, or on any."""
        self._forget()
        return sum(topic in ("", one) and not sent.is_published() for one, sent in self._sent)

    def _forget(self) -> None:
        while self._sent and self._sent[0][1].is_published():
            self._sent.popleft()
