"""Authenticates compact messages with 8 bytes, where a signature's 64 would be most of a message.

Each process of a device that knows the aggregator's key (Ed25519) draws a key pair, and sends its public half
in its hello. Both ends derive the same secret from it (X25519; the aggregator's half is its Ed25519 key, by
the usual map between the curves), which the broker between them cannot. A code is valid for one device, one
topic and one run. A device that signs its hello (see `signing`) proves with that whose key it is, and then
the codes hold in both directions.
"""

from __future__ import annotations

import hashlib
import hmac

from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import CryptoError

from .compact_round import WORD_BYTES
from .messages import MessageError

KEY_BYTES = 32
"""Of either half."""


_PURPOSE = b"device-runtime pact/1\0"


class Pact:
    """What one aggregator and one life of a device have agreed on."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def word(self, topic: str, run: str, payload: bytes) -> bytes:
        """That one of both says this there, in this run; "" for what belongs to none."""
        said = b"".join((topic.encode(), b"\0", run.encode(), b"\0", payload))
        return hmac.digest(self._secret, said, hashlib.sha256)[:WORD_BYTES]

    def holds(self, word: bytes, topic: str, run: str, payload: bytes) -> bool:
        """Whether the word is that of this."""
        return hmac.compare_digest(word, self.word(topic, run, payload))


def of_aggregator(own: bytes, device: bytes) -> Pact:
    """`own` is the aggregator's secret half, `device` the public one of a device; each a key of X25519.

    Raises MessageError for what is no such key.
    """
    return Pact(_secret(_shared(own, device), device, crypto_scalarmult_base(own)))


def of_device(own: bytes, aggregator: bytes) -> Pact:
    """The same from the other end: `own` is the device's secret half, `aggregator` the other's public one."""
    return Pact(_secret(_shared(own, aggregator), crypto_scalarmult_base(own), aggregator))


def public(secret: bytes) -> bytes:
    """The half to say aloud, of a secret one of KEY_BYTES random bytes."""
    return crypto_scalarmult_base(secret)


def _shared(own: bytes, other: bytes) -> bytes:
    try:
        if len(other) != KEY_BYTES:
            raise ValueError(f"it has {len(other)} bytes, expected {KEY_BYTES}")
        return crypto_scalarmult(own, other)
    except (CryptoError, ValueError) as error:  # CryptoError: what comes of it would be known to all
        raise MessageError(f"not a key to agree by: {error}") from None


def _secret(shared: bytes, device: bytes, aggregator: bytes) -> bytes:
    return hmac.digest(shared, b"".join((_PURPOSE, device, aggregator)), hashlib.sha256)
