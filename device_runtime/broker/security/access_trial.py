"""Tests what a broker lets a client do, with MQTT 5, whose brokers say what they refuse."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, replace

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import BrokerError, BrokerRefused, BrokerUnreachable
from device_runtime.broker.wire.link import CLOSED_SILENTLY, refusal_reason, unreachable_reason
from device_runtime.broker.wire.link_events import Received
from device_runtime.broker.wire.url import BrokerUrl

ANSWER_S = 5.0
"""Seconds to wait for an answer of the broker."""


@dataclass(frozen=True)
class Answer:
    """A broker's answer to a message. `known`: false with MQTT 3.1.1, where a refusal cannot be detected."""

    taken: bool
    reason: str = ""
    known: bool = True


class AccessTrial:
    """A test connection: subscribes to `filters`, publishes on request, keeps the messages it receives.

    Tries MQTT 5, and 3.1.1 if the broker does not speak it (`version`). Raises BrokerUnreachable,
    BrokerRefused.
    """

    def __init__(self, url: BrokerUrl, client_id: str, filters: tuple[str, ...]) -> None:
        self.heard: queue.SimpleQueue[Received] = queue.SimpleQueue()
        self._id, self._filters = client_id, filters
        self._answers: dict[int, ReasonCode] = {}
        self._changed = threading.Condition()
        try:
            self._open(replace(url, mqtt5=True))
        except BrokerUnreachable:
            self._open(replace(url, mqtt5=False))

    def publish(self, topic: str, payload: bytes) -> Answer:
        """Publish with QoS 1, not retained, and wait for the broker's answer."""
        sent = self._client.publish(topic, payload, qos=1)
        with self._changed:
            came = self._changed.wait_for(lambda: sent.mid in self._answers or self._lost, ANSWER_S)
        if not came or sent.mid not in self._answers:
            return Answer(False, "it closed the connection" if self._lost else "it does not answer")
        code = self._answers[sent.mid]
        return Answer(not code.is_failure, str(code).lower() if code.is_failure else "", self.version == 5)

    def hear(self, seconds: float) -> list[Received]:
        """The messages that came before, and that come in this time."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost, seconds)
        heard = []
        while not self.heard.empty():
            heard.append(self.heard.get())
        return heard

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _open(self, url: BrokerUrl) -> None:
        self.version = 5 if url.mqtt5 else 3
        self._lost = False
        self._failure: BrokerError | None = None
        self._ready = threading.Event()
        self._url = url
        self._client = client = self._build(url)
        try:
            client.connect(url.host, url.port)
        except (OSError, ValueError) as error:
            raise BrokerUnreachable(unreachable_reason(url, error)) from None
        client.loop_start()
        if not self._ready.wait(ANSWER_S):
            self._failure = BrokerUnreachable(
                unreachable_reason(url, TimeoutError("it does not answer as a broker"))
            )
        if self._failure:
            self.close()
            raise self._failure

    def _build(self, url: BrokerUrl) -> paho.Client:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._id,
            clean_session=None if url.mqtt5 else True,
            protocol=paho.MQTTv5 if url.mqtt5 else paho.MQTTv311,
            transport="websockets" if url.path else "tcp",
            reconnect_on_failure=False,
        )
        if url.path:
            client.ws_set_options(url.path)
        if url.user is not None:
            client.username_pw_set(url.user, url.password)
        if url.secure:
            client.tls_set_context(url.tls.context())
        client.suppress_exceptions = True
        client.on_connect = self._on_connect
        client.on_subscribe = lambda *_: self._ready.set()
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_disconnect = self._on_disconnect
        return client

    def _on_connect(self, client: paho.Client, _d: object, _f: object, code: ReasonCode, _p: object) -> None:
        if code.is_failure:
            if "protocol version" in str(code).lower():
                self._failure = BrokerUnreachable(f"{self._url}: {code}")
            else:
                self._failure = BrokerRefused(f"the broker at {self._url} {refusal_reason(self._url, code)}")
            self._ready.set()
        else:
            client.subscribe([(topic, 1) for topic in self._filters])

    def _on_publish(self, _c: object, _d: object, mid: int, code: ReasonCode, _p: object) -> None:
        with self._changed:
            self._answers[mid] = code
            self._changed.notify_all()

    def _on_message(self, _c: object, _d: object, message: paho.MQTTMessage) -> None:
        self.heard.put(Received(message.topic, bytes(message.payload), message.retain))

    def _on_disconnect(self, _c: object, _d: object, _f: object, _code: object, _p: object) -> None:
        if not self._ready.is_set():
            self._failure = BrokerUnreachable(unreachable_reason(self._url, ConnectionError(CLOSED_SILENTLY)))
            self._ready.set()
        with self._changed:
            self._lost = True
            self._changed.notify_all()
