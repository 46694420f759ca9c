"""Why there is no connection, in plain words."""

import socket
import ssl

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import BrokerBusy, BrokerRefused
from device_runtime.broker.wire import mqtt_client
from device_runtime.broker.wire.link_reasons import (
    EndedConnection,
    disconnect_reason,
    subscription_refused,
    unreachable,
    unreachable_reason,
)
from device_runtime.broker.wire.url import BrokerUrl

URL = BrokerUrl.parse("mqtts://broker:8883")


def distrusted(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, message)
    error.verify_code, error.verify_message = code, message
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (distrusted(10, "certificate has expired"), "if it is right, renew the broker's certificate"),
        (distrusted(18, "self-signed certificate"), "(self-signed certificate): check --ca, and the host"),
        (socket.gaierror(-2, "Name or service not known"), "no machine is called 'broker'"),
        (socket.gaierror(-3, "Temporary failure in name resolution"), "'broker' cannot be looked up for now"),
        (ConnectionRefusedError(111, "Connection refused"), "(connection refused): start one with"),
        (OSError(113, "No route to host"), "(no route to host)"),
    ],
)
def test_each_failure_has_its_reason_and_what_to_check(error: OSError, message: str) -> None:
    text = unreachable_reason(URL, error)
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (mqtt_client.LOOK_UP, "the name server does not answer"),
        (mqtt_client.TCP, "no answer to the TCP connection"),
        (mqtt_client.HANDSHAKE, "no answer to the TLS handshake"),
        (mqtt_client.UPGRADE, "no answer to the upgrade to WebSocket"),
        (mqtt_client.ANSWER, "no CONNACK"),
        (mqtt_client.SUBSCRIPTION, "no SUBACK"),
    ],
)
def test_a_step_that_ran_out_of_time_is_named(step: str, message: str) -> None:
    assert message in str(unreachable(URL, TimeoutError("timed out"), step))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Session taken over", "session taken over: is another client called 'pi'?"),
        ("Server shutting down", "the broker ended it: server shutting down"),
        ("Message rate too high", "the broker ended it: message rate too high"),
        ("Packet too large", "the broker ended it: packet too large"),
    ],
)
def test_what_a_broker_of_mqtt_5_gives_as_a_reason_is_passed_on(name: str, message: str) -> None:
    ended = EndedConnection(ReasonCode(PacketTypes.DISCONNECT, name), by_broker=True, shared_id="pi")
    assert disconnect_reason(ended) == message


@pytest.mark.parametrize(
    ("code", "message"),
    [(0x80, "check its access list"), (0xA2, "has no subscriptions with wildcards"), (0x9E, "--workers")],
)
def test_a_refused_subscription_says_what_the_broker_lacks(code: int, message: str) -> None:
    refused = ReasonCode(PacketTypes.SUBACK, identifier=code)
    assert message in str(subscription_refused(URL, "fl/v1/#", refused, mqtt5=code != 0x80))


@pytest.mark.parametrize("code", [0x80, 0x83, 0x91, 0x97])
def test_a_subscription_that_mqtt_5_refuses_for_now_is_waited_for(code: int) -> None:
    refused = ReasonCode(PacketTypes.SUBACK, identifier=code)
    assert isinstance(subscription_refused(URL, "fl/v1/#", refused), BrokerBusy)
    assert isinstance(subscription_refused(URL, "fl/v1/#", refused, mqtt5=False), BrokerRefused)
