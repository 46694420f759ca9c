"""Authenticates compact messages with 8 bytes, where a signature's 64 would be most of a message.

Each process of a device that knows the aggregator's key (Ed25519) draws a key pair, and sends the public key
in its hello. Both ends derive the same secret from it (X25519; the aggregator uses its Ed25519 key, by the
usual map between the curves); the broker between them cannot. A code (MAC) is valid for one device, one topic
and one run. A device that signs its hello (see `signing`) proves that the key is its own; then the codes
authenticate both directions, otherwise only the aggregator's messages.
"""

from __future__ import annotations

import hashlib
import hmac

from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from .compact_round import MAC_BYTES
from .messages import MessageError

KEY_BYTES = 32
"""Bytes of a secret or public key."""

_PURPOSE = b"device-runtime pact/1\0"


class SessionKey:
    """The secret that an aggregator shares with one process of a device."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def mac(self, topic: str, run: str, payload: bytes) -> bytes:
        """The MAC of a payload on a topic; `run` is "" for a message of no run."""
        message = b"".join((topic.encode(), b"\0", run.encode(), b"\0", payload))
        return hmac.digest(self._secret, message, hashlib.sha256)[:MAC_BYTES]

    def verifies(self, mac: bytes, topic: str, run: str, payload: bytes) -> bool:
        """Whether `mac` is the MAC of the payload."""
        return hmac.compare_digest(mac, self.mac(topic, run, payload))


def aggregator_session(own: bytes, device: bytes) -> SessionKey:
    """The shared secret at the aggregator, from its own secret key and a device's public key (X25519).

    Raises MessageError for an invalid key.
    """
    return SessionKey(_secret(_shared(own, device), device, crypto_scalarmult_base(own)))


def device_session(own: bytes, aggregator: bytes) -> SessionKey:
    """The shared secret at a device, from its own secret key and the aggregator's public key (X25519).

    Raises MessageError for an invalid key.
    """
    return SessionKey(_secret(_shared(own, aggregator), crypto_scalarmult_base(own), aggregator))


def public_key(secret: bytes) -> bytes:
    """The public key of a secret key, which is KEY_BYTES random bytes."""
    return crypto_scalarmult_base(secret)


def _shared(own: bytes, other: bytes) -> bytes:
    try:
        if len(other) != KEY_BYTES:
            raise ValueError(f"it has {len(other)} bytes, expected {KEY_BYTES}")
        return crypto_scalarmult(own, other)
    except (CryptoError, ValueError) as error:  # CryptoError: anyone could compute the shared secret
        raise MessageError(f"not a valid key for key agreement: {error}") from None


def _secret(shared: bytes, device: bytes, aggregator: bytes) -> bytes:
    return hmac.digest(shared, b"".join((_PURPOSE, device, aggregator)), hashlib.sha256)
