"""paho's client on the link's own sockets, which connect step by step and count each byte."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import paho.mqtt.client as paho
from paho.mqtt.client import WebsocketConnectionError
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from device_runtime.broker.sockets.addresses import Endpoint, StepLimit, look_up, open_socket
from device_runtime.broker.sockets.counted_stream import ByteCount, PlainStream, TlsStream

from .link_events import StepTime, Will
from .messages import MESSAGE_LIMIT
from .url import BrokerUrl

log = logging.getLogger(__name__)

LOOK_UP, TCP, HANDSHAKE, UPGRADE = "name lookup", "TCP connection", "TLS handshake", "WebSocket upgrade"
PROXY = "answer of the proxy"
ANSWER, SUBSCRIPTION = "answer to CONNECT", "answer to SUBSCRIBE"
"""The steps of connecting, in this order."""
MOST_INFLIGHT = 20
"""Messages with QoS 1 that wait for their PUBACK, if the broker takes so many (MQTT 5: Receive Maximum)."""
MOST_BYTES = MESSAGE_LIMIT + 64 * 1024
"""The most bytes that are kept of a packet that comes in; of larger ones only the first ROOM_FOR_TOPIC."""
ROOM_FOR_TOPIC = 66_000
MOST_FRAME_BYTES = 16 * 1024**2
"""The most bytes of a frame of a WebSocket, of which paho keeps all until it is complete."""
_CONNACK, _PUBLISH = 0x20, 0x30
_ANSWER_BYTES = 256
"""Bytes of a web server's answer that are looked at."""


class NotMqtt(ConnectionError):
    """What listens there speaks another protocol."""


@dataclass
class ConnectSteps:
    """Where an attempt to connect is: which step, when its time is over, how long the slowest one took."""

    time: StepTime
    closing: Callable[[], bool]
    name: str = LOOK_UP
    limit: StepLimit = field(default_factory=lambda: StepLimit(float("inf")))
    slowest_s: float = 0.0
    _began_at: float = 0.0

    def restart(self) -> None:
        """Begin an attempt."""
        self.slowest_s = self._began_at = 0.0

    def begin(self, name: str) -> StepLimit:
        """The limit of the next step, which begins now."""
        now = time.monotonic()
        self.end(now)
        self.name, self._began_at = name, now
        self.limit = StepLimit(now + self.time.limit_s, self.closing)
        return self.limit

    def end(self, now: float) -> None:
        """Note how long the step took."""
        if self._began_at:
            self.slowest_s = max(self.slowest_s, now - self._began_at)


class MqttClient(paho.Client):
    """A client for one thread that calls `reconnect` and `loop`; others may `publish`.

    `url` may be replaced before each connection: its TLS files are read at each. `largest_sent`: bytes of
    the largest PUBLISH packet that this connection has begun to send. `heard`: the first bytes that came.
    reconnects: paho's own thread, if one is started, connects again.
    """

    def __init__(
        self, url: BrokerUrl, client_id: str, count: ByteCount, steps: ConnectSteps, reconnects: bool = True
    ) -> None:
        self.broker, self.count, self.steps = url, count, steps
        self.stream: PlainStream | None = None
        self.endpoint: Endpoint | None = None
        self.avoided: list[Endpoint] = []
        self.largest_sent = 0
        self.beginning = bytearray()
        self._left_of_packet, self._header = 0, bytearray()
        super().__init__(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            clean_session=None if url.mqtt5 else True,
            protocol=paho.MQTTv5 if url.mqtt5 else paho.MQTTv311,
            transport="websockets" if url.path else "tcp",
            reconnect_on_failure=reconnects,
        )
        if url.path:
            self.ws_set_options(url.path)
        if url.secure:
            self.tls_set_context(url.tls.context())  # that of a connection is made anew, from the files
        self.max_inflight_messages_set(MOST_INFLIGHT)
        self.suppress_exceptions = True  # an exception would end the thread while the link looks connected
        # with this callback no other thread than that of `loop` writes to the socket
        self.on_socket_register_write = lambda *_: None

    def prepare(self, url: BrokerUrl, keepalive_s: int) -> None:
        """Set what the next connection uses. Raises UrlError for TLS files that cannot be used."""
        self.broker, self.endpoint = url, None
        if url.user is not None:
            self.username_pw_set(url.user, url.password)
        clean: bool | Literal[3] = True if self._protocol == paho.MQTTv5 else paho.MQTT_CLEAN_START_FIRST_ONLY
        self.connect_async(url.host, url.port, keepalive_s, clean_start=clean)
        self.largest_sent = self._left_of_packet = 0
        self._header.clear()
        self.beginning.clear()
        self.steps.restart()

    def set_will(self, will: Will, qos: int, retain: bool) -> None:
        """Set the last will of the next connection."""
        self.will_set(will.topic, will.payload, qos=qos, retain=retain)

    @property
    def speaks_mqtt5(self) -> bool:
        """Whether its packets are of MQTT 5."""
        return bool(self._protocol == paho.MQTTv5)

    def speak_mqtt3(self) -> None:
        """Use MQTT 3.1.1 from the next connection on."""
        self._protocol, self._clean_session = paho.MQTTv311, True

    def cap_keepalive(self, most_s: int) -> None:
        """Ping at least as often as this, whatever a broker of MQTT 5 states: 0 would mean never."""
        self._keepalive = min(self._keepalive, most_s) or most_s

    @property
    def silent_s(self) -> float:
        """Seconds since bytes came or went."""
        with self._msgtime_mutex:
            return time.monotonic() - max(self._last_msg_out, self._last_bytes_received)

    @property
    def received_bytes(self) -> int:
        """Bytes of the packet that is being received or handled, kept or not."""
        return int(self._in_packet["remaining_length"])

    def topic_of(self, number: int) -> str:
        """The topic of a message that is not acknowledged, by its packet id."""
        message = self._out_messages.get(number)
        return message.topic if message else "a message"

    def drop(self) -> None:
        """Close the connection at once."""
        self._sock_close()

    def avoid_endpoint(self) -> None:
        """Try other addresses before this one at the next connection: it answered, but not as a broker."""
        if self.endpoint is not None:
            self.avoided = [
                *(endpoint for endpoint in self.avoided if endpoint != self.endpoint),
                self.endpoint,
            ][-8:]

    def forget_messages(self) -> None:
        """Forget the messages with QoS 1 that are not acknowledged."""
        with self._out_message_mutex:
            self._out_messages.clear()
            self._inflight_messages = 0

    def limit_inflight(self, most: int) -> None:
        """Let no more messages wait for their PUBACK (MQTT 5: the broker's Receive Maximum)."""
        with self._out_message_mutex:
            self._max_inflight_messages = max(1, min(most, MOST_INFLIGHT))

    def want_write(self) -> bool:
        return super().want_write() or bool(self.stream is not None and self.stream.unsent)

    def loop_write(self) -> MQTTErrorCode:
        try:
            if self.stream is not None and not self.stream.flush():
                return MQTTErrorCode.MQTT_ERR_SUCCESS
        except OSError:
            return self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)
        return super().loop_write()

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        try:
            return super().loop_read(max_packets)
        except OSError:
            return self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)
        except Exception as error:  # a packet that paho cannot read must not end the thread
            log.debug("a packet of the broker cannot be read: %r", error)
            return self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_PROTOCOL)

    # paho calls these to make a connection and to use it

    def _create_socket(self) -> paho.SocketLike:
        try:
            connected = super()._create_socket()
        except (IndexError, UnicodeError) as error:  # of headers that are no HTTP
            self._close_stream()
            raise NotMqtt(f"no answer of a web server: {error}") from None
        except WebsocketConnectionError as error:
            answer = bytes(self.stream.beginning) if self.stream else b""
            self._close_stream()
            raise NotMqtt(_refused_upgrade(answer, str(error))) from None
        except BaseException:
            self._close_stream()
            raise
        if isinstance(connected, paho._WebsocketWrapper):
            connected._create_frame = partial(_masked_frame, connected._create_frame)  # type: ignore[method-assign]
        if self.stream is not None:
            self.stream.most_beginning = 0
        return connected

    def _create_socket_connection(self) -> PlainStream:  # type: ignore[override]
        endpoints = look_up(*self.broker.first_hop, self.steps.begin(LOOK_UP))
        endpoints.sort(key=lambda endpoint: self.avoided.index(endpoint) if endpoint in self.avoided else -1)
        raw, self.endpoint = open_socket(endpoints, self.steps.begin(TCP))
        self.stream = PlainStream(raw, self.count, whole=bool(self.broker.path))
        if proxy := self.broker.proxy:
            self.stream.ask_proxy(proxy.request(self.broker.host, self.broker.port), self.steps.begin(PROXY))
        if not self.broker.secure:
            self._enter(self.stream)
        return self.stream

    def _ssl_wrap_socket(self, tcp_sock: PlainStream) -> TlsStream:  # type: ignore[override]
        stream = TlsStream(tcp_sock, self.broker.tls.context(), self.broker.host)
        self.stream = stream
        stream.handshake(self.steps.begin(HANDSHAKE))
        self._enter(stream)
        return stream

    def _enter(self, stream: PlainStream) -> None:
        """Begin the step after TCP and TLS. paho makes the upgrade, and then lets nothing wait."""
        if self.broker.path:
            stream.most_beginning = _ANSWER_BYTES
            stream.within(self.steps.begin(UPGRADE))

    def _close_stream(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def _sock_recv(self, bufsize: int) -> bytes:
        try:
            data = super()._sock_recv(bufsize)
        except BlockingIOError:
            if len(getattr(self._sock, "_readbuffer", b"")) > MOST_FRAME_BYTES and self.stream is not None:
                self.stream.failure = NotMqtt(f"it sends a frame of more than {MOST_FRAME_BYTES} bytes")
                raise self.stream.failure from None
            raise
        if self._in_packet["remaining_length"] > MOST_BYTES:
            del self._in_packet["packet"][ROOM_FOR_TOPIC:]
        if len(self.beginning) < 64:
            self.beginning += data
            if self.beginning and self.beginning[0] != _CONNACK and self.stream is not None:
                self.stream.failure = NotMqtt(_looks_like(bytes(self.beginning) + self._rest()))
                raise self.stream.failure
        return data

    def _rest(self) -> bytes:
        """What else has come, to say what it is."""
        with suppress(OSError):
            return super()._sock_recv(63)
        return b""

    def _sock_send(self, buf: bytes | bytearray) -> int:
        sent = super()._sock_send(buf)
        self._follow(memoryview(buf)[: min(sent, len(buf))])
        return sent

    def _follow(self, sent: memoryview) -> None:
        """Follow what is sent from packet to packet, to know the largest PUBLISH that was begun."""
        at = 0
        while at < len(sent):
            if self._left_of_packet:
                step = min(self._left_of_packet, len(sent) - at)
                self._left_of_packet -= step
                at += step
                continue
            self._header.append(sent[at])
            at += 1
            if len(self._header) > 1 and self._header[-1] < 0x80:
                size = sum((digit & 0x7F) << 7 * place for place, digit in enumerate(self._header[1:]))
                if self._header[0] & 0xF0 == _PUBLISH:
                    self.largest_sent = max(self.largest_sent, len(self._header) + size)
                self._left_of_packet = size
                self._header.clear()


def _masked_frame(
    frame_of: Callable[[int, bytearray, int], bytearray], opcode: int, data: bytearray, _masked: int = 1
) -> bytearray:
    """A masked frame, as RFC 6455 (5.1) wants each of a client to be. paho's pongs are not."""
    return frame_of(opcode, data, 1)


def _refused_upgrade(answer: bytes, error: str) -> str:
    """Why there is no WebSocket, in words: the status of the web server's answer."""
    status = answer.partition(b"\r\n")[0].decode("ascii", "replace").split(" ", 1)
    if not (status[0].startswith("HTTP/") and len(status) == 2):
        return f"no answer of a web server: {error}"
    return f"the web server answers {status[1].strip()!r} and makes no WebSocket"


def _looks_like(head: bytes) -> str:
    """What a peer sent in place of CONNACK, in words."""
    if head.startswith(b"HTTP/"):
        return "it answers as a web server: for MQTT over WebSockets use ws:// or wss://"
    if head[:2] in (b"\x15\x03", b"\x16\x03"):
        return "it speaks TLS: use mqtts:// or wss://"
    if head.startswith(b"SSH-"):
        return "it answers as an SSH server"
    text = head[:32].decode("ascii", "replace")
    printable = "".join(letter if letter.isprintable() else "." for letter in text)
    return f"it does not answer as a broker, but with {printable!r}"
