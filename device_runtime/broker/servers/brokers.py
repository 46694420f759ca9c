"""Starts a broker: Mosquitto when this machine has it, amqtt in this process otherwise."""

from __future__ import annotations

from typing import Literal, get_args

from device_runtime.broker.errors import BrokerStartError

from . import mosquitto
from .server import BrokerOptions, RunningBroker

Choice = Literal["auto", "mosquitto", "amqtt"]
CHOICES: tuple[Choice, ...] = get_args(Choice)


def start(kind: Choice = "auto", options: BrokerOptions | None = None) -> RunningBroker:
    """Start a broker, and wait until it accepts connections. Raises BrokerStartError.

    Its `why` says why this kind was chosen.
    """
    if kind == "mosquitto":
        return mosquitto.Mosquitto(options)
    if kind == "amqtt":
        return _embedded(options, "asked for")
    if kind == "auto":
        if mosquitto.find():
            return mosquitto.Mosquitto(options, "it is installed, and faster and safer than amqtt")
        return _embedded(options, "mosquitto is not installed; good for demonstrations on this machine only")
    raise BrokerStartError(f"no broker is called {kind!r}: use {', '.join(CHOICES)}")


def _embedded(options: BrokerOptions | None, why: str) -> RunningBroker:
    try:
        from .amqtt_broker import AmqttBroker
    except ImportError:
        raise BrokerStartError(
            "no broker here: install mosquitto, or run pip install 'device-runtime[aggregator]'"
        ) from None
    return AmqttBroker(options, why)
