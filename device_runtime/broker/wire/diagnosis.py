"""Why there is no connection: one line that says what, where, and what to do."""

from __future__ import annotations

import socket
import ssl

from paho.mqtt.reasoncodes import ReasonCode

from .url import BrokerUrl

HUNG_UP = "it closed the connection without a word; with TLS, look at the certificates"


def refusal(url: BrokerUrl, code: ReasonCode) -> str:
    """What the broker said, to follow "the broker at ...": "refused user 'x': ..."."""
    text = str(code).lower()
    if text in ("bad user name or password", "not authorized"):
        return f"refused {who_is(url)}: wrong user name or password"
    return f"refused the connection: {text}"


def ended(code: ReasonCode, rival: str = "") -> str:
    """Why a connection ended; `rival`: our name, where another client seems to have it too."""
    text = str(code).lower()
    text = "connection lost" if text == "unspecified error" else text
    return f"{text}, again after a short time: is another client called {rival!r}?" if rival else text


def who_is(url: BrokerUrl) -> str:
    """Who we told the broker that we are."""
    return "a client without user name" if url.user is None else f"user {url.user!r}"


def unreachable(url: BrokerUrl, error: Exception) -> str:
    """Why nothing that speaks MQTT answered, and what to look at."""
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
