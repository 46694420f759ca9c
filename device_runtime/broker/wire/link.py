"""A client's MQTT connection, which reconnects by itself and puts its events on a queue in order.

paho's network thread only puts events on the inbox; its callbacks decide nothing. Every session is clean: a
device asks again for what it missed while away, so no broker needs to remember it. A PUBACK only says that
the broker has a message.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import BrokerError, BrokerRefused, BrokerUnreachable

from .link_events import Connected, Disconnected, Event, Received, Will
from .link_timing import ReconnectDelay, packet_bytes, qos_of
from .messages import MESSAGE_LIMIT, MessageError
from .topics import filter_of
from .url import BrokerUrl

if TYPE_CHECKING:
    from paho.mqtt.client import SocketLike


__all__ = [
    "Connected",
    "Disconnected",
    "Event",
    "Link",
    "LinkOptions",
    "Received",
    "Will",
    "packet_bytes",
]

log = logging.getLogger(__name__)

UNSENT_BYTES = 16 * 1024
"""Bytes that the system may hold unsent."""
FAREWELL_S = 2.0
"""Seconds that `close` waits for its last message to leave."""
CLOSED_SILENTLY = "it closed the connection without giving a reason; with TLS, look at the certificates"


@dataclass(frozen=True)
class LinkOptions:
    """Options of a Link.

    `queue_limit` bounds the messages that wait to be sent, `queue_bytes` their bytes. `seed` is of the jitter
    of reconnections (None: the system's randomness). `greeting` is published at each connection before any
    other message: it shows a busy device as present again.
    """

    will: Will | None = None
    subscriptions: tuple[str, ...] = ()
    keepalive_s: int = 30
    reconnect_s: tuple[float, float] = (0.5, 30.0)
    """Seconds before the first attempt, and at most; each wait is shortened at random by up to a half."""
    queue_limit: int = 4096
    queue_bytes: int = 64 * 1024**2
    seed: int | None = None
    greeting: Will | None = None


class Link:
    """A connection that reconnects by itself. All methods may be called from any thread but paho's own.

    `bytes_up` and `bytes_down` count PUBLISH packets as they are on the wire, each message once: messages
    that paho repeats after a lost connection are not counted again.
    """

    def __init__(
        self,
        url: BrokerUrl,
        client_id: str,
        inbox: queue.SimpleQueue[Event],
        options: LinkOptions | None = None,
    ) -> None:
        self.url = url
        self.bytes_up = 0
        self.bytes_down = 0
        self._options = options or LinkOptions()
        self._filters = tuple(map(filter_of, self._options.subscriptions))
        self._inbox = inbox
        self._delay = ReconnectDelay(self._options.reconnect_s, self._options.seed)
        self._answer: queue.SimpleQueue[BrokerError | None] = queue.SimpleQueue()
        self._count = threading.Lock()
        self._in_flight = InFlight()
        self._ready = threading.Event()
        self._was_ready = False
        self._closing = False
        self._ready_since_s = 0.0
        self._client_id = client_id
        self._client = self._build(client_id)

    @property
    def connected(self) -> bool:
        """Whether the link is connected and subscribed, as far as it knows."""
        return self._ready.is_set()

    def connect(self, timeout_s: float = 10.0) -> None:
        """Connect for the first time; from then on the link reconnects by itself.

        Raises BrokerUnreachable when no broker answers in time, BrokerRefused when it refuses. After either,
        `connect` may be called again.
        """
        started = time.monotonic()
        self._closing = False
        self._answer = queue.SimpleQueue()
        self._client.connect_timeout = timeout_s
        try:
            self._client.connect(
                self.url.host, self.url.port, self._options.keepalive_s, clean_start=_clean_start(self.url)
            )
        except (OSError, ValueError) as error:
            self._stop()  # otherwise the client would not connect again
            raise BrokerUnreachable(unreachable_reason(self.url, error)) from None
        self._client.loop_start()
        try:
            failure = self._answer.get(timeout=max(0.1, timeout_s - (time.monotonic() - started)))
        except queue.Empty:
            self._stop()
            silence = TimeoutError("something listens there, but does not answer as a broker")
            raise BrokerUnreachable(unreachable_reason(self.url, silence)) from None
        if failure:
            self._stop()
            raise failure

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Send, now or when the link is back; never waits. Returns False when the queue is full.

        True does not mean that a receiver has the message: only a receipt does. A compact message goes with
        QoS 0 (`qos_of`), and is dropped while the link is down. Raises MessageError for more than
        MESSAGE_LIMIT bytes, which brokers drop silently, ValueError for a topic with wildcards.
        """
        if len(payload) > MESSAGE_LIMIT:
            raise MessageError(
                f"{len(payload)} bytes on {topic}: at most {MESSAGE_LIMIT} go into one message, send a Blob"
            )
        qos = qos_of(topic, payload)
        if self.waiting_bytes() + len(payload) > self._options.queue_bytes:
            return False
        sent = self._client.publish(topic, payload, qos=qos, retain=retain)
        if sent.rc == paho.MQTT_ERR_QUEUE_SIZE:
            return False
        if not qos and sent.rc != paho.MQTT_ERR_SUCCESS:
            return True
        with self._count:
            self.bytes_up += packet_bytes(topic, payload, qos, self.url.mqtt5)
            if qos:
                self._in_flight.add(topic, len(payload), sent)
        return True

    def waiting_bytes(self) -> int:
        """Bytes of the messages that the broker has not acknowledged; most of them wait to be sent."""
        with self._count:
            return self._in_flight.total()

    def unacknowledged(self, topic: str = "") -> int:
        """How many messages the broker has not acknowledged: on this topic, or on any.

        The next connection sends those that a lost one leaves.
        """
        with self._count:
            return self._in_flight.count(topic)

    def close(self, farewell: Will | None = None) -> None:
        """Publish `farewell`, if any, and disconnect; the broker then sends no last will.

        Waits FAREWELL_S at most.
        """
        if farewell and self.connected:
            last = self._client.publish(farewell.topic, farewell.payload, qos=1, retain=farewell.retain)
            try:
                last.wait_for_publish(FAREWELL_S)
            except (RuntimeError, ValueError) as error:
                log.debug("farewell to %s not sent: %s", self.url, error)
        self._stop()

    def _stop(self) -> None:
        self._closing = True
        self._client.disconnect()
        self._client.loop_stop()
        self._ready.clear()

    def _build(self, client_id: str) -> paho.Client:
        mqtt5 = self.url.mqtt5
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if mqtt5 else True,
            protocol=paho.MQTTv5 if mqtt5 else paho.MQTTv311,
            transport="websockets" if self.url.path else "tcp",
        )
        if self.url.path:
            client.ws_set_options(self.url.path)
        if self.url.user is not None:
            client.username_pw_set(self.url.user, self.url.password)
        if self.url.secure:
            client.tls_set_context(self.url.tls.context())
        if self._options.will:
            will = self._options.will
            client.will_set(will.topic, will.payload, qos=1, retain=will.retain)
        client.max_queued_messages_set(self._options.queue_limit)
        client.suppress_exceptions = True  # an exception would end paho's thread while it looks connected
        client.on_socket_open = _send_at_once
        client.on_connect = self._on_connect
        client.on_connect_fail = self._on_connect_fail
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        self._client = client
        self._wait_before_next()
        return client

    def _wait_before_next(self) -> None:
        """Set paho's next delay exactly, because its own back-off has no jitter."""
        delay = self._delay.wait_s()
        self._client.reconnect_delay_set(delay, delay)  # type: ignore[arg-type]  # fractions work

    def _on_connect(
        self, client: paho.Client, _data: object, _flags: object, code: ReasonCode, _properties: object
    ) -> None:
        if code.is_failure:
            if self._was_ready:
                log.warning("the broker at %s %s", self.url, refusal_reason(self.url, code))
            else:
                self._answer.put(BrokerRefused(f"the broker at {self.url} {refusal_reason(self.url, code)}"))
            return
        if self._options.subscriptions:
            client.subscribe([(topic, 1) for topic in self._options.subscriptions])
        if self._was_ready:  # before paho sends the messages that wait, not after subscribing
            self._greet()
        if not self._options.subscriptions:
            self._now_ready()

    def _on_subscribe(
        self, _client: paho.Client, _data: object, _mid: int, codes: Sequence[ReasonCode], _properties: object
    ) -> None:
        refused = [
            topic for topic, code in zip(self._options.subscriptions, codes, strict=False) if code.is_failure
        ]
        if refused:
            user, topics = user_of(self.url), ", ".join(refused)
            text = f"the broker at {self.url} does not let {user} read {topics}: check its access list"
            if not self._was_ready:
                self._answer.put(BrokerRefused(text))
                return
            log.warning("%s", text)
        self._now_ready()

    def _now_ready(self) -> None:
        first, self._was_ready = not self._was_ready, True
        if first:
            self._greet()
        self._ready_since_s = time.monotonic()
        self._ready.set()
        self._inbox.put(Connected(first))
        if first:
            self._answer.put(None)

    def _greet(self) -> None:
        if greeting := self._options.greeting:
            self.publish(greeting.topic, greeting.payload, greeting.retain)

    def _on_connect_fail(self, _client: paho.Client, _data: object) -> None:
        self._delay.failed()
        self._wait_before_next()

    def _on_disconnect(
        self, _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _properties: object
    ) -> None:
        was_ready = self._ready.is_set()
        self._ready.clear()
        if was_ready:
            self._delay.lost(time.monotonic() - self._ready_since_s)
        self._wait_before_next()
        self._delay.failed()
        if not self._was_ready:
            self._answer.put(
                BrokerUnreachable(unreachable_reason(self.url, ConnectionError(CLOSED_SILENTLY)))
            )
        elif was_ready and not self._closing:
            shared_id = self._client_id if self._delay.crowded else ""
            self._inbox.put(Disconnected(disconnect_reason(code, shared_id)))

    def _on_message(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            log.warning("the broker at %s sent a topic that is not UTF-8: dropped", self.url)
            return
        payload = bytes(message.payload)
        with self._count:
            self.bytes_down += packet_bytes(topic, payload, message.qos, self.url.mqtt5)
        if any(paho.topic_matches_sub(one, topic) for one in self._filters):
            self._inbox.put(Received(topic, payload, message.retain))
        else:
            log.debug("the broker at %s sent %s, which we did not ask for: dropped", self.url, topic)


def _send_at_once(_client: object, _data: object, connection: SocketLike) -> None:
    """Send small messages at once (no Nagle), and let the system hold few unsent bytes.

    With Nagle's algorithm a small message waits for the acknowledgement of earlier ones, which costs 40 ms.
    On a slow link, a ping behind many unsent bytes waits longer than the keep-alive. WebSockets keep the
    system's limit of unsent bytes, as paho's WebSocket loses data on partial writes. For a WebSocket paho
    passes a wrapper, which has the number of the socket.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lowat = getattr(socket, "TCP_NOTSENT_LOWAT", 0)
        if lowat and isinstance(connection, socket.socket):
            same.setsockopt(socket.IPPROTO_TCP, lowat, UNSENT_BYTES)


def _clean_start(url: BrokerUrl) -> bool | Literal[3]:
    return True if url.mqtt5 else paho.MQTT_CLEAN_START_FIRST_ONLY  # MQTT 3.1.1 sets it in `_build`


class InFlight:
    """Messages that paho has and the broker has not acknowledged (PUBACK), in the order of publishing.

    They are on their way, or wait to be sent. Not thread-safe.
    """

    def __init__(self) -> None:
        self._sent: deque[tuple[str, int, paho.MQTTMessageInfo]] = deque()
        self._bytes = 0

    def add(self, topic: str, size: int, sent: paho.MQTTMessageInfo) -> None:
        """Note a message of `size` bytes that paho has taken, connected or not."""
        sent.rc = paho.MQTT_ERR_SUCCESS  # a message published offline is sent later, but keeps its error code
        self._forget()
        self._sent.append((topic, size, sent))
        self._bytes += size

    def total(self) -> int:
        """Bytes from the first unacknowledged message on; acknowledged ones behind it count too."""
        self._forget()
        return self._bytes

    def count(self, topic: str = "") -> int:
        """How many messages are not acknowledged: on this topic, or on any."""
        self._forget()
        return sum(topic in ("", one) and not sent.is_published() for one, _, sent in self._sent)

    def _forget(self) -> None:
        while self._sent and self._sent[0][2].is_published():
            self._bytes -= self._sent.popleft()[1]


def refusal_reason(url: BrokerUrl, code: ReasonCode) -> str:
    """Why the broker refused a connection, to follow "the broker at ...": "refused user 'x': ..."."""
    text = str(code).lower()
    if text in ("bad user name or password", "not authorized"):
        return f"refused {user_of(url)}: wrong user name or password"
    return f"refused the connection: {text}"


def disconnect_reason(code: ReasonCode, shared_id: str = "") -> str:
    """Why a connection ended. `shared_id`: our client id, if another client seems to use it too."""
    text = str(code).lower()
    text = "connection lost" if text == "unspecified error" else text
    return f"{text}, again after a short time: is another client called {shared_id!r}?" if shared_id else text


def user_of(url: BrokerUrl) -> str:
    """The user of a URL, for messages."""
    return "a client without user name" if url.user is None else f"user {url.user!r}"


def unreachable_reason(url: BrokerUrl, error: Exception) -> str:
    """Why no MQTT broker answered, and what to check: one line."""
    if isinstance(error, ssl.SSLError):
        why = getattr(error, "verify_message", "") or error.reason or str(error)
        return f"no TLS connection to {url} ({why}): check --ca, and the host in the broker's certificate"
    if isinstance(error, socket.gaierror):
        return f"no machine is called {url.host!r} ({error.strerror}): check the host in {url}"
    why = getattr(error, "strerror", None) or str(error) or "timed out"
    hint = "start one with `device-runtime broker`, or check host and port"
    if url.path and isinstance(error, ValueError | ConnectionError):
        hint = f"check that WebSockets are served at this port, with MQTT under {url.path}"
    return f"no broker answers at {url} ({why.lower()}): {hint}"
