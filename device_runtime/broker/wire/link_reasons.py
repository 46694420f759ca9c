"""Why there is no connection to a broker, in plain words, and whether waiting may help."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass

from paho.mqtt.reasoncodes import ReasonCode

from device_runtime.broker.errors import (
    BrokerBusy,
    BrokerError,
    BrokerRefused,
    BrokerSilent,
    BrokerUnreachable,
)
from device_runtime.broker.sockets.counted_stream import ProxyRefused

from .certificate import is_of_dates
from .mqtt_client import (
    ANSWER,
    HANDSHAKE,
    LOOK_UP,
    PROXY,
    SUBSCRIPTION,
    TCP,
    UPGRADE,
    NotMqtt,
)
from .url import BrokerUrl

CLOSED_SILENTLY = "it closed the connection without giving a reason; with TLS, look at the certificates"
PASSING = frozenset({0x80, 0x83, 0x88, 0x89, 0x8B, 0x91, 0x96, 0x97, 0x9C, 0x9D, 0x9F})
"""Reason codes of a refusal that may pass: unspecified, unavailable, busy, quota, rate, elsewhere.

MQTT 3.1.1 has only "server unavailable" (3) of these; paho gives its codes as those of MQTT 5.
"""
BAD_PASSWORD, NOT_AUTHORIZED = 0x86, 0x87
TAKEN_OVER, PACKET_TOO_LARGE = 0x8E, 0x95
NO_RETAIN, NO_QOS = 0x9A, 0x9B
UNSUPPORTED_VERSION, BAD_CLIENT_ID = 0x84, 0x85

_SILENT = {
    LOOK_UP: "the name server does not answer",
    TCP: "no answer to the TCP connection",
    PROXY: "the proxy does not answer",
    HANDSHAKE: "no answer to the TLS handshake: something listens there, but does not speak TLS in time",
    UPGRADE: "no answer to the upgrade to WebSocket: something listens there, but does not serve WebSockets",
    ANSWER: "no CONNACK: something listens there, but does not answer as a broker",
    SUBSCRIPTION: "no SUBACK: it accepts the connection, but does not answer the subscription",
}
_SUBSCRIPTION_REFUSED = {
    0x8F: "takes no topic filter like {topics}",
    0x97: "allows no more subscriptions, as to {topics}: raise its quota",
    0x9E: "has no shared subscriptions, as {topics}: serve without --workers, or use a broker that has them",
    0xA2: "has no subscriptions with wildcards, as {topics}: use a broker that has them",
}


@dataclass(frozen=True)
class EndedConnection:
    """How a connection ended. `code`: of MQTT 5's DISCONNECT, else of paho; `failure`: of the socket."""

    code: ReasonCode | None = None
    by_broker: bool = False
    failure: OSError | None = None
    shared_id: str = ""
    detail: str = ""


def refusal(url: BrokerUrl, code: ReasonCode, client_id: str, detail: str = "") -> BrokerError:
    """A CONNACK that refuses, as an error. `detail`: what the broker says beside it."""
    text = f"the broker at {url} {refusal_reason(url, code, client_id)}{f' ({detail})' if detail else ''}"
    return BrokerBusy(text) if code.value in PASSING else BrokerRefused(text)


def refusal_reason(url: BrokerUrl, code: ReasonCode, client_id: str = "") -> str:
    """Why the broker refused a connection, to follow "the broker at ...": "refused user 'x': ..."."""
    text = str(code).lower()
    if code.value in (BAD_PASSWORD, NOT_AUTHORIZED):
        return f"refused {user_of(url)}: wrong user name or password, or revoked"
    if code.value == BAD_CLIENT_ID:
        return f"refused the connection: it does not take the client id {client_id!r}"
    if code.value == UNSUPPORTED_VERSION:
        versions = ("5", "without ?mqtt=5") if url.mqtt5 else ("3.1.1", "with ?mqtt=5")
        return f"refused the connection: it does not speak MQTT {versions[0]}: give the URL {versions[1]}"
    if code.value in PASSING:
        return f"refuses connections for now: {text}"
    return f"refused the connection: {text}"


def subscription_refused(url: BrokerUrl, topics: str, code: ReasonCode, mqtt5: bool = True) -> BrokerError:
    """A subscription that was refused, as an error: why, and what to check."""
    if code.value in _SUBSCRIPTION_REFUSED:
        text = f"the broker at {url} {_SUBSCRIPTION_REFUSED[code.value].format(topics=topics)}"
    elif mqtt5 and code.value != NOT_AUTHORIZED:
        text = f"the broker at {url} does not take the subscription to {topics}: {str(code).lower()}"
    else:
        text = f"the broker at {url} does not let {user_of(url)} read {topics}: check its access list"
    # MQTT 3.1.1 has one code for all reasons, which most often stands for an access list
    return BrokerBusy(text) if mqtt5 and code.value in PASSING else BrokerRefused(text)


def is_wordless(ended: EndedConnection) -> bool:
    """Whether the other end, or what lies between, closed the connection without saying why."""
    silent = ended.failure is None or isinstance(ended.failure, ConnectionResetError | BrokenPipeError)
    no_reason = ended.code is None or str(ended.code).lower() == "unspecified error"
    return silent and no_reason and not ended.by_broker


def disconnect_reason(ended: EndedConnection) -> str:
    """Why a connection ended: one phrase."""
    detail = f" ({ended.detail})" if ended.detail else ""
    code = ended.code
    if ended.by_broker and code is not None:
        if code.value == TAKEN_OVER:
            return f"session taken over{detail}: is another client called {ended.shared_id!r}?"
        return f"the broker ended it: {'without a reason' if not code.value else str(code).lower()}{detail}"
    if isinstance(ended.failure, ssl.SSLError):
        return f"TLS: {tls_reason(ended.failure)}"
    if isinstance(ended.failure, NotMqtt):
        return str(ended.failure)
    text = "connection lost" if code is None else str(code).lower()
    if text == "unspecified error":
        text = "connection lost"
    if text == "keep alive timeout":
        text = "the broker does not answer pings any more"
    if ended.shared_id:
        return f"{text}, again after a short time: is another client called {ended.shared_id!r}?"
    return text


def user_of(url: BrokerUrl) -> str:
    """The user of a URL, for messages."""
    return "a client without user name" if url.user is None else f"user {url.user!r}"


def silence(url: BrokerUrl, step: str) -> BrokerSilent:
    """A step that ran out of time, as an error."""
    hint = "" if step in (ANSWER, SUBSCRIPTION) else ": check host and port, and the network"
    return BrokerSilent(f"no broker answers at {url} ({_SILENT[step]}){hint}")


def unreachable(url: BrokerUrl, error: Exception, step: str = TCP, dates: str = "") -> BrokerUnreachable:
    """An attempt that failed, as an error. dates: of a certificate that is refused for them."""
    if isinstance(error, TimeoutError):
        return silence(url, step)
    return BrokerUnreachable(unreachable_reason(url, error, dates))


def tls_reason(error: ssl.SSLError) -> str:
    """OpenSSL's reason in plain words."""
    why = getattr(error, "verify_message", "") or error.reason or str(error)
    return why if " " in why else why.lower().replace("_", " ")


def _where(url: BrokerUrl) -> str:
    return f"?proxy={url.proxy}" if url.proxy else f"the host in {url}"


def unreachable_reason(url: BrokerUrl, error: Exception, dates: str = "") -> str:
    """Why no MQTT broker answered, and what to check: one line."""
    if isinstance(error, ssl.SSLError):
        hint = "check --ca, and the host in the broker's certificate"
        if is_of_dates(error):
            hint = "check this device's clock; if it is right, renew the broker's certificate"
        elif not isinstance(error, ssl.SSLCertVerificationError):
            hint += "; is TLS spoken at this port, and our certificate valid?"
        return f"no TLS connection to {url} ({tls_reason(error)}{dates}): {hint}"
    if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
        return (
            f"the name {url.host!r} cannot be looked up for now ({error.strerror}): check the network, and "
            "the name server of this machine"
        )
    if isinstance(error, socket.gaierror):
        host, _ = url.first_hop
        return f"no machine is called {host!r} ({error.strerror}): check {_where(url)}"
    why = getattr(error, "strerror", None) or str(error) or "timed out"
    why = why if isinstance(error, NotMqtt | ProxyRefused) else why.lower()
    hint = "start one with `device-runtime broker`, or check host and port"
    if url.proxy:
        hint = f"check {_where(url)}, and that the proxy lets connections to port {url.port} through"
    elif url.path and isinstance(error, ValueError | ConnectionError):
        hint = f"check that WebSockets are served at this port, with MQTT under {url.path}"
    return f"no broker answers at {url} ({why}): {hint}"
