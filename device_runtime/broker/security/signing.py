"""Signs and verifies (Ed25519) what the aggregator offers, and what enrolled devices say.

An offer is signed with its topic and its time of issue, so that what was said to one device is not an offer
to another. A device signs its hellos, plans and contributions with their topic, which has its name. What is
said in few bytes has no signature (see `pact`).
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from nacl.exceptions import BadSignatureError, CryptoError
from nacl.signing import SigningKey, VerifyKey

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.wire import session_mac
from device_runtime.broker.wire.messages import (
    FromDevice,
    MessageError,
    Offer,
    Signed,
    Succession,
    decode,
    encode,
)
from device_runtime.broker.wire.partial_blob import sync_folder
from device_runtime.broker.wire.session_mac import Pact

KEY_BYTES = 32
_PURPOSE = b"device-runtime offer/1\0"
_SUCCESSION = b"device-runtime succession/1\0"
_OF_DEVICE = b"device-runtime device/1\0"


class KeyFileError(BrokerError):
    """A private key that cannot be read or kept."""


class NotTrusted(MessageError):
    """A message that is not from whom it claims to be: this aggregator, or an enrolled device."""


class Signer:
    """The aggregator's key. `public` (32 bytes) is what devices are enrolled with."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 random bytes."""
        self._key = SigningKey(secret)
        self.public = bytes(self._key.verify_key)

    @classmethod
    def kept(cls, path: Path) -> Signer:
        """The key in this file (64 hex digits, mode 0600), made on first need. Raises KeyFileError."""
        try:
            if not path.exists():
                _keep(path, secrets.token_bytes(KEY_BYTES))
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
        """The payload to publish there. `issued`: seconds since 1970; `successions` as in Signed."""
        payload = encode(offer)
        signature = self._key.sign(_signed(topic, issued, payload)).signature
        return encode(Signed(issued=issued, signature=signature, offer=payload, successions=successions))

    def succeeded(self, new: bytes, made: int) -> Succession:
        """That this key is followed by the public one `new`."""
        signature = self._key.sign(_succession(self.public, new, made)).signature
        return Succession(self.public, new, made, signature)

    def agree(self, device: bytes) -> Pact:
        """With a device that has said this. Raises MessageError for what is no key."""
        return session_mac.of_aggregator(bytes(self._key.to_curve25519_private_key()), device)


class Verifier:
    """The key of one aggregator, as a device knows it. Raises NotTrusted when `public` is no key.

    `public` changes when an offer is signed by a successor that this key, or its successor, has signed.
    """

    def __init__(self, public: bytes) -> None:
        self.public = public
        try:
            self._key = VerifyKey(public)
        except ValueError:
            raise NotTrusted(f"the aggregator's key has {len(public)} bytes, expected {KEY_BYTES}") from None

    def open(self, topic: str, payload: bytes) -> tuple[Offer, int]:
        """The offer in a payload that came on this topic, and when it was issued.

        Raises NotTrusted for one that is unsigned or another's, MessageError for what is no offer at all.
        """
        try:
            sealed = decode(payload, Signed)
        except MessageError as error:
            raise NotTrusted(f"offer on {topic} refused: it is not signed ({error})") from None
        said = _signed(topic, sealed.issued, sealed.offer)
        signer = _last(self._key, sealed.successions)
        if _holds(self._key, said, sealed.signature):
            pass
        elif signer != self._key and _holds(signer, said, sealed.signature):
            self._key, self.public = signer, bytes(signer)
        else:
            name = fingerprint(bytes(self._key))
            raise NotTrusted(
                f"offer on {topic} refused: it is not signed by the aggregator that this device is enrolled "
                f"with (key {name})"
            ) from None
        return decode(sealed.offer, Offer), sealed.issued

    def agree(self, secret: bytes) -> Pact:
        """By a secret half of the device's own. Raises NotTrusted where the aggregator's key is no point."""
        try:
            return session_mac.of_device(secret, bytes(self._key.to_curve25519_public_key()))
        except (CryptoError, MessageError):
            name = fingerprint(bytes(self._key))
            raise NotTrusted(f"the aggregator's key {name} is none that can be agreed by") from None


def _last(key: VerifyKey, successions: tuple[Succession, ...]) -> VerifyKey:
    """The key that a chain leads to from this one, as far as each link is signed by the one before."""
    for link in successions:
        if link.old == bytes(key) and _holds(key, _succession(link.old, link.new, link.made), link.signature):
            with suppress(ValueError):
                key = VerifyKey(link.new)
    return key


def _holds(key: VerifyKey, said: bytes, signature: bytes) -> bool:
    try:
        key.verify(said, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


class DeviceSigner:
    """A device's own key. `public` (32 bytes) is what the register of the enrolment has of it."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: 32 random bytes."""
        self._key = SigningKey(secret)
        self.public = bytes(self._key.verify_key)

    def seal(self, topic: str, payload: bytes) -> bytes:
        """The payload to publish there, of an encoded message."""
        signature = self._key.sign(_of_device(topic, payload)).signature
        return encode(FromDevice(signature=signature, message=payload))


def said_by(public: bytes, topic: str, payload: bytes) -> bytes:
    """The encoded message in a payload that came on this topic, signed by the device with this public key.

    Raises NotTrusted for one that is unsigned or another's.
    """
    try:
        sealed = decode(payload, FromDevice)
    except MessageError as error:
        raise NotTrusted(f"message on {topic} refused: it is not signed ({error})") from None
    try:
        VerifyKey(public).verify(_of_device(topic, sealed.message), sealed.signature)
    except (BadSignatureError, ValueError):
        raise NotTrusted(
            f"message on {topic} refused: it is not signed by the device that was enrolled (key "
            f"{fingerprint(public)})"
        ) from None
    return sealed.message


def fingerprint(public: bytes) -> str:
    """Of a key, for people: its first 8 bytes."""
    return public[:8].hex()


def _signed(topic: str, issued: int, payload: bytes) -> bytes:
    return b"".join((_PURPOSE, topic.encode(), b"\0", issued.to_bytes(8, "big"), payload))


def _succession(old: bytes, new: bytes, made: int) -> bytes:
    return b"".join((_SUCCESSION, old, new, made.to_bytes(8, "big")))


def _of_device(topic: str, payload: bytes) -> bytes:
    return b"".join((_OF_DEVICE, topic.encode(), b"\0", payload))


def _keep(path: Path, secret: bytes) -> None:
    """All of it or nothing, and never over another: a key that is cut or changes locks out every device."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret.hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # somebody else was first: theirs it is
            os.link(beside, path)
        sync_folder(path.parent)
    finally:
        beside.unlink(missing_ok=True)
