"""Meters with a smart plug or other device that publishes by MQTT: Shelly, Tasmota, or plain numbers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import UrlError
from device_runtime.broker.wire.url import BrokerUrl

from .command import UNITS, in_message
from .meter import MeterError, MeterInfo, MeterReading, PowerIntegral

ABOUT = MeterInfo("mqtt", "what the plug measures", error=0.03, every_s=10.0)
WAIT_S = 75.0
"""Seconds to wait for the first message, and for which the latest is valid.

A Shelly sends once a minute if nothing changes; Tasmota each five minutes, unless `TelePeriod 10` is set.
"""
STEP_S = 30
"""The longest that each step of a connection may take, and the keep-alive, in seconds.

paho connects again after that; it gives TCP 5 s by itself, which slow links need longer than.
"""
POWER = tuple(unit for unit, (energy, _) in UNITS.items() if not energy)
USAGE = "mqtt://[USER:PASSWORD@]HOST[:PORT]/TOPIC[#PATH[,UNIT]], as mqtt://127.0.0.1/tele/plug/SENSOR#ENERGY.Power"


@dataclass(frozen=True)
class MeterTopic:
    """Broker, topic, and path and unit of the figure in a message (unit "": see `quantity`)."""

    url: BrokerUrl
    topic: str
    path: str = ""
    unit: str = ""

    @classmethod
    def of(cls, text: str) -> MeterTopic:
        """From `USAGE`. Without a password, the network need not be encrypted. Raises MeterError."""
        head, _, fragment = text.partition("#")
        path, _, unit = fragment.partition(",")
        try:
            parts = urlsplit(head)
            base = f"{parts.scheme}://{parts.netloc}"
            url = BrokerUrl.parse(base, insecure="@" not in parts.netloc)
        except (UrlError, ValueError) as error:
            raise MeterError(f"{error}; expected {USAGE}") from None
        topic = parts.path.lstrip("/")
        if not topic or "+" in topic or (unit and unit not in POWER):
            raise MeterError(f"expected {USAGE}, UNIT of {', '.join(POWER)}")
        return cls(url, topic, path, unit)


class MqttMeter:
    """See `meter.Meter`. Power only: a counter's messages are too rare to measure one piece of work."""

    about = ABOUT

    def __init__(self, source: MeterTopic, clock: Callable[[], float], wait_s: float = WAIT_S) -> None:
        """Connects in the background; a reading waits `wait_s` seconds for the first message."""
        self._source, self._clock, self._wait_s = source, clock, wait_s
        self._news = threading.Condition()
        self._integral = PowerIntegral(ABOUT.every_s)
        self._latest: tuple[float, float] | None = None
        self._wrong = self._outage = ""
        self._resting = True
        self._client = _client(source.url)
        self._client.on_connect = lambda _client, _data, _flags, reason, _properties: self._connected(reason)
        self._client.on_connect_fail = lambda _client, _data: self._on_lost("no broker answers")
        self._client.on_disconnect = lambda _client, _data, _flags, reason, _properties: self._on_lost(
            f"the connection to the broker ended ({str(reason).lower()})"
        )
        self._client.on_message = lambda _client, _data, message: self.hear(bytes(message.payload))
        try:
            self._client.connect_async(source.url.host, source.url.port, keepalive=STEP_S)
        except ValueError as error:
            raise MeterError(f"{source.url}: {error}") from None
        self._client.loop_start()

    def _connected(self, reason: ReasonCode) -> None:
        with self._news:
            self._wrong = f"the broker refuses: {reason}" if reason.is_failure else ""
            self._outage = "" if not reason.is_failure else self._outage
            self._news.notify_all()
        if not reason.is_failure:
            self._client.subscribe(self._source.topic)

    def _on_lost(self, why: str) -> None:
        with self._news:
            self._outage = why

    def hear(self, payload: bytes) -> None:
        """Take a message."""
        with self._news:
            try:
                power = in_message(payload, self._source.path, self._source.unit)
                if power.energy:
                    raise MeterError("it tells energy, expected power")
            except MeterError as error:
                self._wrong = str(error)
            else:
                self._latest = self._clock(), power.value
                if not self._resting:
                    self._integral = self._integral.after(*self._latest)
            self._news.notify_all()

    def read(self) -> MeterReading:
        with self._news:
            self._news.wait_for(lambda: self._latest is not None or self._wrong, self._wait_s)
            if self._latest is None:
                raise self._silent(self._wrong or f"no message in {self._wait_s:g} s{self._because}")
            (came, watts), now = self._latest, self._clock()
            if now - came > WAIT_S:
                raise self._silent(
                    f"no message for {now - came:.0f} s{self._because or ': it should speak more often'}"
                )
            self._integral = self._integral.after(now, watts) if self._resting else self._integral.extend(now)
            self._resting = False
            return self._integral.reading

    def rest(self) -> None:
        with self._news:
            self._resting = True
            self._integral = self._integral.broken()

    @property
    def _because(self) -> str:
        return f": {self._outage}" if self._outage else ""

    def _silent(self, why: str) -> MeterError:
        return MeterError(f"{self._source.url}, {self._source.topic}: {why}")


def find_meter(text: str, clock: Callable[[], float]) -> MqttMeter:
    """The meter that publishes there, as `USAGE`, after its first message. Raises MeterError."""
    meter = MqttMeter(MeterTopic.of(text), clock)
    meter.read()
    meter.rest()
    return meter


def _client(url: BrokerUrl) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect_timeout = STEP_S
    if url.user is not None:
        client.username_pw_set(url.user, url.password)
    if url.secure:
        client.tls_set_context(url.tls.context())
    return client
