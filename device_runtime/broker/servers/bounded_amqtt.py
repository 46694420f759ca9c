"""The broker amqtt with limits: what one client does ends that client, and is one line of the log.

amqtt 0.12.1 reads a packet of any size at any pace, keeps any number of messages for a client that takes or
acknowledges none, lets the errors of its tasks become tracebacks, and leaves connections open after errors.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import websockets.asyncio.server
from amqtt.adapters import ReaderAdapter, StreamWriterAdapter, WebSocketsWriter
from amqtt.broker import Broker
from amqtt.contexts import ListenerType
from amqtt.errors import AMQTTError, MQTTError, ProtocolHandlerError
from amqtt.mqtt.constants import QOS_2
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from websockets.asyncio.server import ServerConnection  # comes with amqtt
from websockets.exceptions import ConnectionClosed

from device_runtime.broker.wire.url import is_loopback
from device_runtime.console import CountedLines

from .mosquitto import MESSAGE_BYTES
from .places import BACKLOG, Place, Places, SharedListener, Shares, Stage, sent_by

log = logging.getLogger(__name__)
lines = CountedLines(log)

PACKET_BYTES = MESSAGE_BYTES + 64 * 1024
"""The most bytes of a packet: a message and its topic."""
PIECE_S = 60.0
"""Seconds in which a part of a packet that has begun must come."""
QUIET_S = 900
"""The keep-alive of a client that names none, in seconds."""
ACKNOWLEDGED_S = 30.0
"""Seconds after which a client that acknowledges nothing is ended; single messages are given up after 5 s."""
WAITING, WAITING_BYTES = 20_000, 128 * 1024**2
"""The most messages, and bytes of them, that wait for one client to take them."""
RECEIVED = 100
"""The most messages of QoS 2 that a client has begun and not completed."""
QUEUED = 1000
"""Messages or subscriptions that wait to be handled; then no more is read of the client."""
SUBSCRIPTIONS, FILTER_CHARACTERS = 256, 1024
"""The most subscriptions of a client, and characters of each."""
RETAINED, RETAINED_BYTES = 100_000, 512 * 1024**2
"""The most retained messages, and bytes of them."""
TAKEN_OVER_S = 2.0
"""Seconds that the older of two connections with one client id has to end."""


class SnapshotDict(dict[str, Any]):
    """A dict that iterates over a snapshot of itself.

    amqtt iterates over its tables while it waits for clients, and other tasks change them meanwhile: it then
    dropped a client that was connecting ("dictionary changed size during iteration", amqtt 0.12.1).
    """

    def __iter__(self) -> Iterator[str]:
        return iter(list(super().__iter__()))

    def items(self) -> Any:
        return list(super().items())

    def __repr__(self) -> str:
        return f"{len(self)} topics"  # amqtt writes out all its subscriptions at each SUBSCRIBE


class PacketReader(ReaderAdapter):  # type: ignore[misc]  # amqtt is not read by mypy
    """Reads packets of bounded size, while there is room for what they cause.

    `more` gives the next bytes, empty at the end; `is_full` says whether to wait; `end` ends the connection.
    """

    def __init__(self, more: Callable[[int], Any], end: Callable[[], object]) -> None:
        self._more, self.end = more, end
        self.is_full: Callable[[], bool] = lambda: False
        self._waiting = bytearray()

    async def read(self, n: int = -1) -> bytes:
        """Exactly `n` bytes. Raises IncompleteReadError, also for a packet that is too large or too slow."""
        while self.is_full():
            await asyncio.sleep(0.01)
        if n > PACKET_BYTES:
            lines.say("the embedded broker ends clients whose packets are too large", f"{n} bytes")
            self.end()
            raise asyncio.IncompleteReadError(b"", n)
        while len(self._waiting) < n:
            patience_s = PIECE_S if n > 1 or self._waiting else None  # before a packet the keep-alive counts
            try:
                data = await asyncio.wait_for(self._more(n - len(self._waiting)), patience_s)
            except asyncio.TimeoutError:
                self.end()
                data = b""
            if not data:
                raise asyncio.IncompleteReadError(bytes(self._waiting), n)
            self._waiting += data
        block = bytes(self._waiting[:n])
        del self._waiting[:n]
        return block

    def feed_eof(self) -> None:
        """Nothing to do: the connection says when it ends."""


class OpenWriter(StreamWriterAdapter):  # type: ignore[misc]
    """Writes while the connection is open; asyncio logs a line for each write after that."""

    def write(self, data: bytes) -> None:
        if not self._writer.transport.is_closing():
            super().write(data)


class BoundedHandler(BrokerProtocolHandler):  # type: ignore[misc]
    """The broker's side of one client, which `end` ends."""

    end: Callable[[], object]
    place: Place | None

    def begin(self, reader: PacketReader, place: Place | None, is_full: Callable[[], bool]) -> None:
        """Take the limits, in place of a constructor: amqtt makes the object."""
        self.end, self.place = reader.end, place
        self.over = asyncio.Event()
        self._messages = self._bytes = 0
        self._acknowledged_at = self._loop.time()
        reader.is_full = lambda: is_full() or self._is_full()

    async def mqtt_connack_authorize(self, authorize: bool) -> None:
        if authorize and self.place:
            self.place.enter(Stage.PROVEN)
        await super().mqtt_connack_authorize(authorize)

    async def mqtt_publish(self, topic: str, data: bytes, *args: Any, **settings: Any) -> Any:
        """Send a message. What a client does not take or acknowledge ends that client, and is no error."""
        if self._messages >= WAITING or self._bytes + len(data) > WAITING_BYTES:
            self._end(
                "the embedded broker ends clients that take too little", f"{self._messages} messages wait"
            )
            return None
        self._messages, self._bytes = self._messages + 1, self._bytes + len(data)
        try:
            return await super().mqtt_publish(topic, data, *args, **settings)
        except (TimeoutError, asyncio.TimeoutError):
            if self._loop.time() - self._acknowledged_at > ACKNOWLEDGED_S:
                self._end("the embedded broker ends clients that acknowledge nothing", topic)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and getattr(task, "cancelling", lambda: 0)():
                raise
        except (AMQTTError, MQTTError, ProtocolHandlerError, OSError, ConnectionClosed):
            self.end()  # it has ended, or is ending
        finally:
            self._messages, self._bytes = self._messages - 1, self._bytes - len(data)
        return None

    async def handle_publish(self, publish_packet: Any) -> None:
        if publish_packet.qos == QOS_2 and self.session and len(self.session.inflight_in) >= RECEIVED:
            self._end("the embedded broker ends clients that complete no message of QoS 2")
            return
        with suppress(AMQTTError, asyncio.CancelledError, OSError):  # the client has ended meanwhile
            await super().handle_publish(publish_packet)

    async def handle_puback(self, puback: Any) -> None:
        self._acknowledged_at = self._loop.time()
        await super().handle_puback(puback)

    async def handle_pubrec(self, pubrec: Any) -> None:
        self._acknowledged_at = self._loop.time()
        await super().handle_pubrec(pubrec)

    def handle_read_timeout(self) -> None:
        """End a client that has not kept its keep-alive."""
        self.end()

    def _end(self, kind: str, detail: str = "") -> None:
        lines.say(kind, f"{self.session.client_id if self.session else ''} {detail}")
        self.end()

    def _is_full(self) -> bool:
        queues = [self._pending_subscriptions, self._pending_unsubscriptions]
        if self.session:
            queues.append(self.session.delivered_message_queue)
        return any(queue.qsize() > QUEUED for queue in queues)


class BoundedBroker(Broker):  # type: ignore[misc]
    """amqtt with limits. It refuses web pages of other sites, which a browser here would let connect."""

    def __init__(
        self, configuration: dict[str, Any], shares: Shares, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(configuration, loop=loop)
        self._shares = shares
        self._subscriptions, self._retained_messages = SnapshotDict(), SnapshotDict()
        self._filters: dict[str, set[str]] = {}
        self._retained_bytes = 0
        self._readers: dict[Any, tuple[PacketReader, Place | None]] = {}

    async def _create_server_instance(
        self, listener_name: str, listener_type: ListenerType, address: str, port: int, ssl_context: Any
    ) -> Any:
        """Listen with places. amqtt itself would bind without them."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        bound = socket.create_server((address, port), family=family, backlog=BACKLOG)
        places = Places(self._shares, "the embedded broker")
        listening = SharedListener.of(bound, places)
        if listener_type is ListenerType.TCP:
            answer = partial(self._on_stream, listener_name, places)
            return await asyncio.start_server(answer, sock=listening, backlog=BACKLOG)
        return await websockets.asyncio.server.serve(
            partial(self._on_web_socket, listener_name, places),
            sock=listening,
            subprotocols=[websockets.Subprotocol("mqtt")],
            max_size=PACKET_BYTES,
            open_timeout=self._shares.first_s,
            logger=logging.getLogger("amqtt.websockets"),
        )

    async def _on_stream(
        self, listener: str, places: Places, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async def more(most: int) -> bytes:
            try:
                return await reader.read(most)
            except OSError:
                return b""

        await self._answer(listener, places, writer.transport, (more, OpenWriter(writer)))

    async def _on_web_socket(self, listener: str, places: Places, page: ServerConnection) -> None:
        origin = page.request.headers.get("Origin") if page.request else None
        if origin is not None and not is_loopback(urlsplit(origin).hostname or ""):
            await page.close(1008, "this broker is open to pages of this machine only")
            return

        async def more(_most: int) -> bytes:
            try:
                while not (data := await page.recv()):
                    pass
            except ConnectionClosed:
                return b""
            return data.encode() if isinstance(data, str) else data

        await self._answer(listener, places, page.transport, (more, WebSocketsWriter(page)))

    async def _answer(self, listener: str, places: Places, transport: Any, ends: tuple[Any, Any]) -> None:
        """Serve one connection until it ends; whatever it causes costs itself alone."""
        more, writer = ends
        plain = transport.get_extra_info("socket")
        place = places.of(plain.fileno()) if plain else None
        if place:
            place.end, place.sent = transport.abort, sent_by(transport)
        reader = PacketReader(more, transport.abort)
        self._readers[writer] = (reader, place)
        try:
            await self._client_connected(listener, reader, writer)
        except Exception as error:
            lines.say("the embedded broker ends clients that send what it cannot read", repr(error))
        finally:
            del self._readers[writer]
            transport.abort()

    async def _initialize_client_session(self, reader: Any, writer: Any, *address: Any) -> tuple[Any, Any]:
        handler, session = await super()._initialize_client_session(reader, writer, *address)
        handler.__class__ = BoundedHandler
        handler.begin(*self._readers[writer], lambda: self._broadcast_queue.qsize() > QUEUED)
        session.keep_alive = session.keep_alive * 3 // 2 or QUIET_S  # MQTT 3.1.1, section 3.1.2.10
        return handler, session

    async def _delete_session(self, client_id: str) -> None:
        """Forget a session, and end its connection first: two with one client id must not both go on."""
        _, older = self._sessions.get(client_id, (None, None))
        if isinstance(older, BoundedHandler) and not older.over.is_set():
            older.end()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(older.over.wait(), TAKEN_OVER_S)
        await super()._delete_session(client_id)

    async def _client_message_loop(self, client_session: Any, handler: Any) -> None:
        """Handle the messages of a client, and after its end, however it came to it, its last will."""
        try:
            await super()._client_message_loop(client_session, handler)
        finally:
            handler.end()
            handler.over.set()
            if client_session.transitions.is_connected() and self._get_handler(client_session) is handler:
                ended = asyncio.get_running_loop().create_future()
                ended.set_result(None)
                await self._handle_disconnect(client_session, handler, ended)

    async def add_subscription(self, subscription: tuple[str, int], session: Any) -> int:
        topic_filter = subscription[0]
        filters = self._filters.get(session.client_id, set())
        if len(topic_filter) > FILTER_CHARACTERS or len(filters) >= SUBSCRIPTIONS:
            lines.say("the embedded broker refuses subscriptions beyond its limits", session.client_id)
            return 0x80
        code = int(await super().add_subscription(subscription, session))
        if code != 0x80:
            self._filters.setdefault(session.client_id, filters).add(topic_filter)
        return code

    def _del_subscription(self, topic_filter: str, session: Any) -> int:
        filters = self._filters.get(session.client_id, set())
        filters.discard(topic_filter)
        if not filters:
            self._filters.pop(session.client_id, None)
        return int(super()._del_subscription(topic_filter, session))

    async def _del_all_subscriptions(self, session: Any) -> None:
        """Delete a client's own: amqtt asks every topic whether it is one of them."""
        for topic_filter in list(self._filters.get(session.client_id, ())):
            self._del_subscription(topic_filter, session)
            if not self._subscriptions[topic_filter]:
                del self._subscriptions[topic_filter]

    async def retain_message(
        self, source_session: Any, topic_name: str | None, data: bytes | None, qos: int | None = None
    ) -> None:
        before = self._retained_messages.get(topic_name or "")
        size = len(data or b"") - (len(before.data) if before else 0)
        full = self._retained_bytes + size > RETAINED_BYTES or len(self._retained_messages) >= RETAINED
        if data and full and not (before and size <= 0):
            lines.say("the embedded broker retains no more messages", topic_name)
            return
        await super().retain_message(source_session, topic_name, data, qos)
        self._retained_bytes += size

    async def _publish_retained_messages_for_subscription(
        self, subscription: tuple[str, int], session: Any
    ) -> None:
        """Send what is retained for a subscription of this client: amqtt 0.12.1 does so for everybody's."""
        if any(user is session for user, _ in self._subscriptions.get(subscription[0], ())):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _retain_broadcast_message(self, broadcast: Any, qos: int, target_session: Any) -> None:
        """Keep a message for a client that is away, of which only so many wait."""
        if target_session.retained_messages.qsize() < QUEUED:
            await super()._retain_broadcast_message(broadcast, qos, target_session)
        else:
            lines.say(
                "the embedded broker drops messages for clients that are away", target_session.client_id
            )
