"""Signs and verifies round offers and the messages of enrolled devices (Ed25519).

An offer is signed with its topic and its time of issue, so that an offer to one device is not valid for
another. A device signs its hellos, plans and contributions with their topic, which has its name. Compact
messages have a MAC of 8 bytes instead, since a signature's 64 would be most of a message.

For MACs, each process of a device that knows the aggregator's key draws a key pair, and sends the public key
in its hello. Both ends derive the same secret from it (X25519; the aggregator uses its Ed25519 key, by the
usual map between the curves); the broker between them cannot. A MAC is valid for one device, one topic and
one run. A device that signs its hello proves that the key is its own; then MACs authenticate both directions,
otherwise only the aggregator's messages.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.exceptions import BadSignatureError, CryptoError
from nacl.signing import SigningKey, VerifyKey

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire.compact_round import MAC_BYTES
from device_runtime.broker.wire.durable_files import locked_folder, private_folder, sync_folder, write_synced
from device_runtime.broker.wire.messages import (
    FromDevice,
    MessageError,
    Offer,
    Signed,
    Succession,
    decode,
    encode,
)

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


KEY_BYTES = 32
_OFFER_PURPOSE = b"device-runtime offer/1\0"
_SUCCESSION_PURPOSE = b"device-runtime succession/1\0"
_DEVICE_PURPOSE = b"device-runtime device/1\0"


class KeyFileError(BrokerError):
    """A private key that cannot be read or stored."""


class NotTrusted(MessageError):
    """A message that is not signed by its claimed sender: this aggregator, or an enrolled device."""


class Signer:
    """The aggregator's signing key. Devices get its `public` key (32 bytes) when they are enrolled."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 random bytes."""
        self._key = SigningKey(secret)
        self.public = bytes(self._key.verify_key)

    @classmethod
    def of_file(cls, path: Path) -> Signer:
        """The key in this file (64 hex digits, mode 0600), which is made if missing. Raises KeyFileError."""
        try:
            if not path.exists():
                _write_key(path, secrets.token_bytes(KEY_BYTES))
            secret = bytes.fromhex(path.read_text("ascii"))
        except OSError as error:
            why = error.strerror or error
            raise KeyFileError(f"cannot keep the aggregator's key in {path}: {why}") from None
        except ValueError:
            raise KeyFileError(f"the aggregator's key {path} is not {2 * KEY_BYTES} hex digits") from None
        if len(secret) != KEY_BYTES:
            raise KeyFileError(f"the aggregator's key {path} has {len(secret)} bytes, expected {KEY_BYTES}")
        return cls(secret)

    def seal(self, topic: str, offer: Offer, issued: int, successions: tuple[Succession, ...] = ()) -> bytes:
        """The signed offer, to publish on this topic. `issued`: seconds since 1970; the rest as in Signed."""
        payload = encode(offer)
        signature = self._key.sign(_offer_bytes(topic, issued, payload)).signature
        return encode(Signed(issued=issued, signature=signature, offer=payload, successions=successions))

    def succeeded(self, new: bytes, made_at: int) -> Succession:
        """The signed statement that the public key `new` follows this key."""
        signature = self._key.sign(_succession_bytes(self.public, new, made_at)).signature
        return Succession(self.public, new, made_at, signature)

    def agree(self, device: bytes) -> SessionKey:
        """The secret shared with the process of a device, by its public key for MACs.

        Raises MessageError for an invalid key.
        """
        return aggregator_session(bytes(self._key.to_curve25519_private_key()), device)


class Verifier:
    """The key of one aggregator, as a device knows it. Raises NotTrusted when `public` is no key.

    `public` changes when an offer is signed by a successor of this key; each key has signed the next one.
    """

    def __init__(self, public: bytes) -> None:
        self.public = public
        try:
            self._key = VerifyKey(public)
        except ValueError:
            raise NotTrusted(f"the aggregator's key has {len(public)} bytes, expected {KEY_BYTES}") from None

    def open(self, topic: str, payload: bytes) -> tuple[Offer, int]:
        """The offer in a payload that came on this topic, and when it was issued; both verified.

        Raises NotTrusted for one that is unsigned or another's, MessageError for what is no offer at all.
        """
        try:
            sealed = decode(payload, Signed)
        except MessageError as error:
            raise NotTrusted(f"offer on {topic} refused: it is not signed ({error})") from None
        content = _offer_bytes(topic, sealed.issued, sealed.offer)
        signer = _last_key(self._key, sealed.successions)
        if _is_valid(self._key, content, sealed.signature):
            pass
        elif signer != self._key and _is_valid(signer, content, sealed.signature):
            self._key, self.public = signer, bytes(signer)
        else:
            name = fingerprint(bytes(self._key))
            raise NotTrusted(
                f"offer on {topic} refused: it is not signed by the aggregator that this device is enrolled "
                f"with (key {name})"
            ) from None
        return decode(sealed.offer, Offer), sealed.issued

    def agree(self, secret: bytes) -> SessionKey:
        """The secret shared with the aggregator, by a secret key of this device for MACs.

        Raises NotTrusted when the aggregator's key is not a point on the curve.
        """
        try:
            return device_session(secret, bytes(self._key.to_curve25519_public_key()))
        except (CryptoError, MessageError):
            name = fingerprint(bytes(self._key))
            raise NotTrusted(f"the aggregator's key {name} is not valid for key agreement") from None


def _last_key(key: VerifyKey, successions: tuple[Succession, ...]) -> VerifyKey:
    """The last key of a chain of successions from this key, as far as each key has signed the next one."""
    for link in successions:
        if link.old == bytes(key) and _is_valid(
            key, _succession_bytes(link.old, link.new, link.made), link.signature
        ):
            with suppress(ValueError):
                key = VerifyKey(link.new)
    return key


def _is_valid(key: VerifyKey, content: bytes, signature: bytes) -> bool:
    try:
        key.verify(content, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


class DeviceSigner:
    """A device's own signing key. The register of devices has its `public` key (32 bytes)."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 random bytes."""
        self._key = SigningKey(secret)
        self.public = bytes(self._key.verify_key)

    def seal(self, topic: str, payload: bytes) -> bytes:
        """The signed message, to publish on this topic; `payload` is an encoded message."""
        signature = self._key.sign(_device_bytes(topic, payload)).signature
        return encode(FromDevice(signature=signature, message=payload))


def verify_message(public: bytes, topic: str, payload: bytes) -> bytes:
    """The encoded message in a payload that came on this topic, verified by the device's public key.

    Raises NotTrusted for one that is unsigned or another's.
    """
    try:
        sealed = decode(payload, FromDevice)
    except MessageError as error:
        raise NotTrusted(f"message on {topic} refused: it is not signed ({error})") from None
    try:
        VerifyKey(public).verify(_device_bytes(topic, sealed.message), sealed.signature)
    except (BadSignatureError, ValueError):
        raise NotTrusted(
            f"message on {topic} refused: it is not signed by the device that was enrolled (key "
            f"{fingerprint(public)})"
        ) from None
    return sealed.message


def fingerprint(public: bytes) -> str:
    """The first 8 bytes of a key in hex digits, for people."""
    return public[:8].hex()


def _offer_bytes(topic: str, issued: int, payload: bytes) -> bytes:
    return b"".join((_OFFER_PURPOSE, topic.encode(), b"\0", issued.to_bytes(8, "big"), payload))


def _succession_bytes(old: bytes, new: bytes, made_at: int) -> bytes:
    return b"".join((_SUCCESSION_PURPOSE, old, new, made_at.to_bytes(8, "big")))


def _device_bytes(topic: str, payload: bytes) -> bytes:
    return b"".join((_DEVICE_PURPOSE, topic.encode(), b"\0", payload))


def _write_key(path: Path, secret: bytes) -> None:
    """Write a key file as a whole, and never over another: a damaged or new key locks out every device."""
    private_folder(path.parent)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(beside, f"{secret.hex()}\n".encode(), new_mode=0o600)
        _put_if_new(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _put_if_new(beside: Path, path: Path) -> None:
    """Give a whole file its name, unless another process was first: then its key is used."""
    try:
        os.link(beside, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links, or an Android that denies them
        with locked_folder(path.parent):
            if not path.exists():
                beside.rename(path)
