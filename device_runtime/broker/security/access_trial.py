"""Tests what a broker lets a client do, with MQTT 5, whose brokers say what they refuse."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, replace

import paho.mqtt.client as paho
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import BrokerError, BrokerSilent, BrokerUnreachable
from device_runtime.broker.sockets.counted_stream import ByteCount
from device_runtime.broker.wire import link_reasons
from device_runtime.broker.wire.link_events import Received, StepTime, packet_bytes
from device_runtime.broker.wire.mqtt_client import ANSWER, ConnectSteps, MqttClient
from device_runtime.broker.wire.url import BrokerUrl

STEPS_S = (5.0, 40.0)
"""Seconds for each step of connecting, and for an answer: at first, and in a second attempt."""


@dataclass(frozen=True)
class Answer:
    """A broker's answer. `is_known`: false with MQTT 3.1.1, where a refusal cannot be detected."""

    is_accepted: bool
    reason: str = ""
    is_known: bool = True


class AccessTrial:
    """A test connection: subscribes to `filters`, publishes on request, keeps the messages it receives.

    Tries MQTT 5, and 3.1.1 if the broker does not speak it (`version`). `stated_limit`: the most bytes of a
    packet, where the broker says so. Raises BrokerUnreachable,
    BrokerRefused.
    """

    def __init__(self, url: BrokerUrl, client_id: str, filters: tuple[str, ...]) -> None:
        self.inbox: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self.stated_limit: int | None = None
        self._base_url, self._id, self._filters = url, client_id, filters
        self._answers: dict[int, ReasonCode] = {}
        self._changed = threading.Condition()
        self._answer_s = STEPS_S[0]
        self.open()

    def open(self) -> None:
        """Connect, also again after the broker has closed the connection. Raises as the constructor."""
        try:
            self._patiently(replace(self._base_url, mqtt5=True))
        except BrokerUnreachable:
            self._patiently(replace(self._base_url, mqtt5=False))

    def largest_packet(self, topic: str, sizes: tuple[int, ...]) -> int:
        """The first of these sizes, the largest first, that the broker takes as a packet; 0: none of them.

        It connects again after each that ends the connection. Raises as the constructor.
        """
        if self.stated_limit is not None and self.stated_limit < sizes[0]:
            return self.stated_limit
        for size in sizes:
            if self._is_lost:
                self.close()
                self.open()
            around = packet_bytes(topic, bytes(size), 1, self.version == 5) - size
            if self.publish(topic, bytes(size - around)).is_accepted:
                return size
        return 0

    def publish(self, topic: str, payload: bytes) -> Answer:
        """Publish with QoS 1, not retained, and wait for the broker's answer."""
        sent = self._client.publish(topic, payload, qos=1)
        with self._changed:
            came = self._changed.wait_for(lambda: sent.mid in self._answers or self._is_lost, self._answer_s)
        if not came or sent.mid not in self._answers:
            return Answer(False, "it closed the connection" if self._is_lost else "it does not answer")
        code = self._answers[sent.mid]
        return Answer(not code.is_failure, str(code).lower() if code.is_failure else "", self.version == 5)

    def hear(self, seconds: float) -> list[Received]:
        """The messages that came before, and that come in this time."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_lost, seconds)
        messages = []
        while not self.inbox.empty():
            messages.append(self.inbox.get())
        return messages

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _patiently(self, url: BrokerUrl) -> None:
        """Connect; once more, with more time, if the broker is slow."""
        try:
            self._open(url, STEPS_S[0])
        except BrokerSilent:
            self._open(url, STEPS_S[1])

    def _open(self, url: BrokerUrl, step_s: float) -> None:
        self.version = 5 if url.mqtt5 else 3
        self._is_lost = False
        self._answers.clear()
        self._failure: BrokerError | None = None
        self._ready = threading.Event()
        self._url, self._answer_s = url, step_s
        steps = ConnectSteps(StepTime((step_s, step_s)), lambda: False)
        self._client = client = self._build(url, steps)
        try:
            client.prepare(url, 60)
            client.reconnect()
        except BrokerError:
            raise
        except (OSError, ValueError) as error:
            raise link_reasons.unreachable(url, error, steps.name) from None
        client.loop_start()
        if not self._ready.wait(2 * step_s):  # for CONNACK and SUBACK
            self._failure = link_reasons.silence(url, ANSWER)
        if self._failure:
            self.close()
            raise self._failure

    def _build(self, url: BrokerUrl, steps: ConnectSteps) -> MqttClient:
        client = MqttClient(url, self._id, ByteCount(), steps, reconnects=False)
        client.on_connect = self._on_connect
        client.on_subscribe = lambda *_: self._ready.set()
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        return client

    def _on_connect(
        self, client: paho.Client, _d: object, _f: object, code: ReasonCode, properties: Properties | None
    ) -> None:
        if not code.is_failure:
            self.stated_limit = getattr(properties, "MaximumPacketSize", None)
            client.subscribe([(topic, 1) for topic in self._filters])
            return
        if code.value == link_reasons.UNSUPPORTED_VERSION:
            self._failure = BrokerUnreachable(f"{self._url}: {code}")
        else:
            self._failure = link_reasons.refusal(self._url, code, self._id)
        self._ready.set()

    def _on_publish(self, _c: object, _d: object, mid: int, code: ReasonCode, _p: object) -> None:
        with self._changed:
            self._answers[mid] = code
            self._changed.notify_all()

    def _on_message(self, _c: object, _d: object, message: paho.MQTTMessage) -> None:
        self.inbox.put(Received(message.topic, bytes(message.payload), message.retain))

    def _on_disconnect(self, _c: object, _d: object, _f: object, _code: object, _p: object) -> None:
        if not self._ready.is_set():
            failure = self._client.stream.failure if self._client.stream else None
            closed = failure or ConnectionError(link_reasons.CLOSED_SILENTLY)
            self._failure = BrokerUnreachable(link_reasons.unreachable_reason(self._url, closed))
            self._ready.set()
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()
