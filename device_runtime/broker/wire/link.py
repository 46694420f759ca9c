"""A client's MQTT connection, which reconnects by itself and puts its events on a queue in order.

The link's thread only puts events on the inbox; its callbacks decide nothing. Every session is clean: a
device asks again for what it missed while away, so no broker needs to remember it. A PUBACK only says that
the broker has a message.

Each step of connecting has a time of its own, which grows with the attempts (`StepTime`). What is counted is
what went through the socket. Credentials are read anew at each connection. Messages larger than the broker's
packets go in pieces (`pieces`).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import (
    BrokerBusy,
    BrokerError,
    BrokerRefused,
    BrokerSilent,
    BrokerUnreachable,
)
from device_runtime.broker.sockets.addresses import Abandoned
from device_runtime.broker.sockets.counted_stream import ByteCount

from . import link_reasons
from .certificate import is_of_dates, validity
from .link_events import (
    STEADY_S,
    Connected,
    Disconnected,
    Event,
    KeepAlive,
    LinkOptions,
    Outage,
    Received,
    ReconnectDelay,
    StepTime,
    Will,
    duration,
    packet_bytes,
)
from .link_reasons import EndedConnection
from .messages import MESSAGE_LIMIT, MessageError
from .mqtt_client import ANSWER, MOST_BYTES, MOST_INFLIGHT, SUBSCRIPTION, ConnectSteps, MqttClient
from .outgoing import Outgoing
from .pieces import SMALLEST, PieceJoiner
from .topics import filter_of
from .url import BrokerUrl

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

FAREWELL_S = 2.0
"""Seconds that `close` waits for its last message to leave."""
PATIENCE_S = 150.0
"""Seconds that `connect` waits for a broker that is slow or busy, unless it is told otherwise."""
LOOK_S = 0.05


class Link:
    """A connection that reconnects by itself. All methods may be called from any thread but the link's own.

    `bytes_up` and `bytes_down` are what went through its sockets: handshakes, TLS, pings, repeats and all.
    """

    def __init__(
        self,
        url: BrokerUrl,
        client_id: str,
        inbox: queue.SimpleQueue[Event],
        options: LinkOptions | None = None,
    ) -> None:
        """Raises UrlError for TLS files that cannot be used."""
        self.url = url
        self._options = options or LinkOptions()
        self._filters = tuple(map(filter_of, self._options.subscriptions))
        self._inbox = inbox
        self._client_id = client_id
        self._bytes = ByteCount()
        self._delay = ReconnectDelay(self._options.reconnect_s, self._options.seed)
        self._steps = ConnectSteps(StepTime(self._options.steps_s), lambda: self._closing)
        self._outage = Outage()
        self._keepalive = KeepAlive(url.keepalive_s or self._options.keepalive_s)
        self._joiner = PieceJoiner()
        self._thread: threading.Thread | None = None
        self._answer: BrokerError | None = None
        self._answered, self._leaving, self._ready = threading.Event(), threading.Event(), threading.Event()
        self._was_ready = self._closing = self._at_once = self._accepted = False
        self._patient_until = self._ready_since = 0.0
        self._ended = EndedConnection()
        self._dates_said = ""
        self._failure: BrokerError | None = None  # of the last attempt
        self._failure_now: BrokerError | None = None  # of the attempt that is being made
        self._client = self._build()
        self._outgoing = Outgoing(self._client, self._options.queue_bytes)

    @property
    def connected(self) -> bool:
        """Whether the link is connected and subscribed, as far as it knows."""
        return self._ready.is_set()

    @property
    def bytes_up(self) -> int:
        """Bytes sent since the link was made."""
        return self._bytes.up

    @property
    def bytes_down(self) -> int:
        """Bytes received since the link was made."""
        return self._bytes.down

    @property
    def packet_limit(self) -> int | None:
        """The most bytes of a packet that the broker takes; None while no limit is known."""
        return self._outgoing.limit.most

    def connect(self, timeout_s: float | None = None, stop: threading.Event | None = None) -> None:
        """Connect for the first time; from then on the link reconnects by itself.

        Waits for a broker that is slow or refuses for now: `timeout_s` at most, by default until the time of
        each step has grown to its most; returns early, unconnected, when `stop` is set. Raises
        BrokerUnreachable when no broker answers, BrokerRefused when it refuses. After either, `connect` may
        be called again.
        """
        self._end_thread()
        self._closing, self._answer = False, None
        self._answered.clear()
        self._leaving.clear()
        began_at = time.monotonic()
        self._patient_until = began_at + (PATIENCE_S if timeout_s is None else timeout_s)
        self._thread = threading.Thread(target=self._run, name=f"link-{self._client_id}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads can be started, which is not to be hidden by waiting for it
            self._thread = None
            raise
        while not self._answered.wait(LOOK_S):
            if stop is not None and stop.is_set():
                self._stop()
                return
            if timeout_s is not None and time.monotonic() > began_at + timeout_s:
                step = self._steps.name
                self._stop()
                raise self._failure or link_reasons.silence(self.url, step)
        if self._answer is not None:
            self._stop()
            raise self._answer

    def publish(self, topic: str, payload: bytes, retain: bool = False) -> bool:
        """Send, now or when the link is back; never waits. Returns False when the queue is full.

        True does not mean that a receiver has the message: only a receipt does. A compact message goes with
        QoS 0 (`qos_of`), and is dropped while the link is down. One that the broker's packets cannot hold,
        not even in pieces, is dropped, and the log names its size. Raises MessageError for more than
        MESSAGE_LIMIT bytes, which brokers drop silently, ValueError for a topic with wildcards.
        """
        if len(payload) > MESSAGE_LIMIT:
            raise MessageError(
                f"{len(payload)} bytes on {topic}: at most {MESSAGE_LIMIT} go into one message, send a Blob"
            )
        return self._outgoing.publish(topic, payload, retain)

    def waiting_bytes(self) -> int:
        """Bytes of the messages that the broker has not acknowledged; most of them wait to be sent."""
        return self._outgoing.waiting_bytes()

    def unacknowledged(self, topic: str = "") -> int:
        """How many messages the broker has not acknowledged: on this topic, or on any.

        The next connection sends those that a lost one leaves.
        """
        return self._outgoing.unacknowledged(topic)

    def close(self, farewell: Will | None = None) -> None:
        """Publish `farewell`, if any, and disconnect; the broker then sends no last will.

        Waits FAREWELL_S at most.
        """
        if farewell and self.connected:
            retain = farewell.retain and self._outgoing.retains
            last = self._client.publish(
                farewell.topic, farewell.payload, qos=self._outgoing.most_qos, retain=retain
            )
            try:
                last.wait_for_publish(FAREWELL_S)
            except (RuntimeError, ValueError) as error:
                log.debug("farewell to %s not sent: %s", self.url, error)
        self._stop()

    def _stop(self) -> None:
        self._closing = True
        self._client.disconnect()
        self._leaving.set()
        self._end_thread()
        self._ready.clear()

    def _end_thread(self) -> None:
        """Wait for the thread, if any, which ends soon after `_closing`."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        thread.join(FAREWELL_S)
        while thread.is_alive():
            self._client.drop()
            thread.join(FAREWELL_S)
        self._thread = None

    def _build(self) -> MqttClient:
        client = MqttClient(self.url, self._client_id, self._bytes, self._steps)
        client.max_queued_messages_set(self._options.queue_limit)
        if self._options.will:
            client.set_will(self._options.will, 1, self._options.will.retain)
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        return client

    def _run(self) -> None:
        """The link's thread: connects, again and again, until the link is closed."""
        try:
            while not self._closing:
                failure = self._attempt()
                if self._closing:
                    return
                if failure is not None:
                    self._failure = failure
                    if not self._was_ready and not self._waits_for(failure):
                        self._answer = failure
                        return
                    self._say(str(failure))
                if self._at_once:
                    self._at_once = False
                    continue
                wait_s = self._delay.wait_s()
                self._delay.failed()
                self._leaving.wait(wait_s)
        finally:
            self._answered.set()

    def _waits_for(self, failure: BrokerError) -> bool:
        """Whether the first connection is tried again after this."""
        passing = isinstance(failure, BrokerSilent | BrokerBusy) or self._at_once
        return passing and time.monotonic() < self._patient_until

    def _attempt(self) -> BrokerError | None:
        """Connect and work until the connection ends. Returns why there was none; None: there was one."""
        client = self._client
        self._ended, self._failure_now, self._accepted = EndedConnection(), None, False
        try:
            client.prepare(self._address(), self._keepalive.seconds)
            client.reconnect()
            self._steps.begin(ANSWER)
            self._work()
        except Abandoned:
            return None
        except TimeoutError:
            self._failure_now = link_reasons.silence(self.url, self._steps.name)
            self._steps.time.timed_out()
            client.avoid_endpoint()
        except BrokerError as error:
            self._failure_now = BrokerUnreachable(f"{error}; reading it again at the next attempt")
        except (OSError, ValueError) as error:
            client.avoid_endpoint()
            self._failure_now = link_reasons.unreachable(
                self.url, error, self._steps.name, self._dates(error)
            )
        except Exception as error:
            log.exception("the link to %s met an unexpected error", self.url)
            self._failure_now = BrokerUnreachable(f"unexpected error in the link to {self.url}: {error!r}")
        finally:
            client.drop()
        if self._closing:
            return None
        if self._accepted:
            code = self._ended.code
            stated = self._ended.by_broker and code is not None
            suspicious = self._outgoing.learn(stated and code == link_reasons.PACKET_TOO_LARGE)
            if self._ready.is_set():
                self._on_loss(suspicious)
                return None
        return self._failure_now or self._closed_early()

    def _dates(self, error: Exception) -> str:
        """The dates of a certificate that is refused for them, looked up once until there is a connection."""
        if not is_of_dates(error):
            return ""
        if not self._dates_said:
            with suppress(BrokerError):  # the files of TLS are being renewed
                self._dates_said = validity(error, self.url.tls.context(), self.url)
        return self._dates_said

    def _address(self) -> BrokerUrl:
        """The URL with the credentials as they are now. Raises BrokerError if they cannot be read."""
        if self._options.renewed is not None:
            try:
                renewed = self._options.renewed()
            except BrokerError:
                raise
            except Exception as error:
                raise BrokerUnreachable(f"cannot read the credentials for {self.url}: {error}") from None
            same = ("mqtt5", "path", "secure", "keepalive_s", "proxy")
            self.url = replace(renewed, **{name: getattr(self.url, name) for name in same})
        return self.url

    def _work(self) -> None:
        """Send and receive until the connection ends. Raises TimeoutError in a step that takes too long."""
        client = self._client
        leave_at = float("inf")
        while client.loop(1.0 if self._ready.is_set() else LOOK_S) == MQTTErrorCode.MQTT_ERR_SUCCESS:
            if self._failure_now is not None:
                return
            if not self._ready.is_set():
                self._steps.limit.slice_s()
            elif self._closing:
                leave_at = min(leave_at, time.monotonic() + FAREWELL_S)
                if time.monotonic() >= leave_at:
                    return

    def _closed_early(self) -> BrokerError:
        """The connection ended before it was ready."""
        stream = self._client.stream
        ended = replace(self._ended, failure=stream.failure if stream else None)
        if not self._accepted:
            self._client.avoid_endpoint()
        if ended.failure is not None and not isinstance(
            ended.failure, ConnectionResetError | BrokenPipeError
        ):
            return link_reasons.unreachable(self.url, ended.failure, self._steps.name)
        if ended.by_broker:
            return BrokerUnreachable(f"the broker at {self.url}: {link_reasons.disconnect_reason(ended)}")
        closed = ConnectionError(link_reasons.CLOSED_SILENTLY)
        return BrokerUnreachable(link_reasons.unreachable_reason(self.url, closed))

    def _on_loss(self, suspicious: bool) -> None:
        """A connection that was ready has ended; `suspicious`: its largest packet may be the reason."""
        stream = self._client.stream
        self._ready.clear()
        ended = replace(self._ended, failure=stream.failure if stream else None)
        lasted_s = time.monotonic() - self._ready_since
        wordless = link_reasons.is_wordless(ended)
        self._delay.note_end(lasted_s, rivalry=wordless and not suspicious and not self.unacknowledged())
        silent_s = min(lasted_s, self._client.silent_s)
        if wordless and self._keepalive.ended(silent_s, lasted_s):
            log.warning(
                "connections to the broker at %s end after %s of silence: pings come each %d s from now on",
                self.url,
                duration(silent_s),
                self._keepalive.seconds,
            )
        taken_over = ended.code is not None and ended.code.value == link_reasons.TAKEN_OVER
        if taken_over or (self._delay.crowded and lasted_s < STEADY_S):
            ended = replace(ended, shared_id=self._client_id)
        reason = link_reasons.disconnect_reason(ended)
        self._say(f"the connection to the broker at {self.url} ended ({reason})")
        self._inbox.put(Disconnected(reason))

    def _on_connect(
        self,
        client: paho.Client,
        _data: object,
        _flags: object,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if code.is_failure:
            self._refused(code, properties)
            return
        if not self._take_terms(properties):
            return
        self._accepted, self._dates_said = True, ""
        if self._options.subscriptions:
            self._steps.begin(SUBSCRIPTION)
            client.subscribe([(topic, self._outgoing.most_qos) for topic in self._options.subscriptions])
        if self._was_ready:  # before paho sends the messages that wait, not after subscribing
            self._greet()
        self._outgoing.fit()
        if not self._options.subscriptions:
            self._now_ready()

    def _refused(self, code: ReasonCode, properties: Properties | None) -> None:
        """The broker refuses the connection; what we can do without is left out of the next one."""
        if code.value == link_reasons.UNSUPPORTED_VERSION and self._client.speaks_mqtt5:
            log.warning("the broker at %s does not speak MQTT 5: going on with MQTT 3.1.1", self.url)
            self._client.speak_mqtt3()
            self._at_once = True
        elif code.value == link_reasons.NO_RETAIN and self._outgoing.retains:
            self._outgoing.retains, self._at_once = False, True
        elif code.value == link_reasons.NO_QOS and self._outgoing.most_qos:
            self._outgoing.most_qos, self._at_once = 0, True
        if self._at_once and self._options.will:
            will = self._options.will
            self._client.set_will(will, self._outgoing.most_qos, will.retain and self._outgoing.retains)
        server = getattr(properties, "ServerReference", "")
        details = (getattr(properties, "ReasonString", ""), f"it names {server}" if server else "")
        detail = ", ".join(filter(None, details))
        self._failure_now = link_reasons.refusal(self.url, code, self._client_id, detail)

    def _take_terms(self, properties: Properties | None) -> bool:
        """Take what the broker says of itself (MQTT 5). Returns whether we can work with it."""
        self._client.cap_keepalive(self._keepalive.seconds)
        limit = getattr(properties, "MaximumPacketSize", None)
        self._outgoing.limit.stated(limit)
        self._client.limit_inflight(getattr(properties, "ReceiveMaximum", MOST_INFLIGHT))
        self._outgoing.most_qos = min(1, getattr(properties, "MaximumQoS", self._outgoing.most_qos))
        if not getattr(properties, "RetainAvailable", 1) and self._outgoing.retains:
            log.warning(
                "the broker at %s retains no messages: who comes later learns of a task by saying hello",
                self.url,
            )
            self._outgoing.retains = False
        why = ""
        if limit is not None and limit < SMALLEST:
            why = f"takes packets of at most {limit} bytes; at least {SMALLEST} are needed: raise its limit"
        wild = [topic for topic in self._options.subscriptions if "+" in topic or "#" in topic]
        if wild and not getattr(properties, "WildcardSubscriptionAvailable", 1):
            why = f"has no subscriptions with wildcards, as {', '.join(wild)}: use a broker that has them"
        if why:
            self._failure_now = BrokerRefused(f"the broker at {self.url} {why}")
        return not why

    def _on_subscribe(
        self, _client: paho.Client, _data: object, _mid: int, codes: Sequence[ReasonCode], _properties: object
    ) -> None:
        answers = zip(self._options.subscriptions, codes, strict=False)
        refused = [(topic, code) for topic, code in answers if code.is_failure]
        if refused:
            final = [code for _, code in refused if code.value not in link_reasons.PASSING]
            code = final[0] if final else refused[0][1]
            topics = ", ".join(topic for topic, _ in refused)
            mqtt5 = self._client.speaks_mqtt5
            self._failure_now = link_reasons.subscription_refused(self.url, topics, code, mqtt5)
            return
        self._now_ready()

    def _now_ready(self) -> None:
        first, self._was_ready = not self._was_ready, True
        if first:
            self._greet()
        now = time.monotonic()
        self._ready_since = now
        self._steps.end(now)
        self._steps.time.succeeded(self._steps.slowest_s)
        self._client.avoided.clear()
        self._ready.set()
        self._inbox.put(Connected(first))
        if (away_s := self._outage.over(now)) is not None:
            log.warning("the broker at %s answers again, after %s", self.url, duration(away_s))
        self._answered.set()

    def _greet(self) -> None:
        if greeting := self._options.greeting:
            self.publish(greeting.topic, greeting.payload, greeting.retain)

    def _say(self, reason: str) -> None:
        """Log why there is no connection, if it has not been said."""
        if self._outage.worth_saying(reason, time.monotonic()):
            often = " (this comes often, and is not said again for 10 minutes)"
            log.warning("%s; trying again%s", reason, often if self._outage.is_frequent(reason) else "")

    def _on_disconnect(
        self,
        _client: paho.Client,
        _data: object,
        flags: paho.DisconnectFlags,
        code: ReasonCode,
        properties: object,
    ) -> None:
        detail = str(getattr(properties, "ReasonString", ""))
        self._ended = EndedConnection(code, flags.is_disconnect_packet_from_server, detail=detail)

    def _on_publish(
        self, _client: object, _data: object, mid: int, code: ReasonCode, _properties: object
    ) -> None:
        """Say once for each reason that the broker passes no messages on (MQTT 5)."""
        if code.is_failure and self._outgoing.worth_saying(why := str(code).lower()):
            log.warning("the broker at %s does not pass on %s: %s", self.url, self._client.topic_of(mid), why)

    def _on_message(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            if self._outgoing.worth_saying("a topic that is not UTF-8"):
                log.warning("the broker at %s sent a topic that is not UTF-8: dropped", self.url)
            return
        if self._client.received_bytes > MOST_BYTES:
            if self._outgoing.worth_saying(f"large {topic}"):
                log.warning(
                    "dropped a message of %d bytes on %s: at most %d are sent in one",
                    self._client.received_bytes,
                    topic,
                    MESSAGE_LIMIT,
                )
            return
        payload = bytes(message.payload)
        if not any(paho.topic_matches_sub(topic_filter, topic) for topic_filter in self._filters):
            log.debug("the broker at %s sent %s, which we did not ask for: dropped", self.url, topic)
        elif not PieceJoiner.is_piece(topic):
            self._inbox.put(Received(topic, payload, message.retain))
        elif not message.retain and (whole := self._joiner.take(topic, payload)):
            self._inbox.put(Received(*whole))
