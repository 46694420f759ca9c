"""A device's enrolment: the broker's address, the device's name and password there, and keys.

It is handed over as a token, one word to paste, and kept in the device's folder as JSON that only the owner
may read.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ssl
from dataclasses import replace
from pathlib import Path

import msgspec

from device_runtime.broker.errors import BrokerError, UrlError
from device_runtime.broker.wire.durable_files import private_folder, replace_file
from device_runtime.broker.wire.topics import check_device
from device_runtime.broker.wire.url import BrokerUrl

FILE = "enrolment.json"
"""The file's name in a device's folder."""
PREFIX = "fl1."
"""The start of a token, which names its format."""
TOKEN_LIMIT = 16 * 1024
"""Characters. A longer token is not read."""
_CHECK_BYTES = 4


class EnrolmentError(BrokerError):
    """A token or a stored enrolment that cannot be used."""


class Enrolment(msgspec.Struct, frozen=True, array_like=True):
    """The enrolment of one device.

    `authority` is the certificate of the broker's authority (DER), `key` the aggregator's public key (32
    bytes), `issued` the time of enrolment in seconds since 1970, by the operator's clock. `secret` (32 bytes)
    is the device's own key, which signs its messages. Unlike the password, it never goes to the broker. It is
    empty in enrolments of earlier versions.
    """

    url: str
    name: str
    password: str
    authority: bytes
    key: bytes
    issued: int
    secret: bytes = b""

    def __post_init__(self) -> None:
        check_device(self.name)
        if len(self.key) != 32:
            raise ValueError(f"the aggregator's key has {len(self.key)} bytes, expected 32")
        if len(self.secret) not in (0, 32):
            raise ValueError(f"the device's own key has {len(self.secret)} bytes, expected 32")
        if not BrokerUrl.parse(self.url).secure:
            raise ValueError(f"{self.url} is not encrypted: expected mqtts:// or wss://")

    def __repr__(self) -> str:
        return f"Enrolment({self.name!r} at {self.url})"

    @property
    def address(self) -> BrokerUrl:
        """The broker, its authority, and the user name and password there."""
        return self.at(BrokerUrl.parse(self.url))

    @property
    def client_id(self) -> str:
        """An MQTT client id that others cannot guess.

        A broker ends the older of two connections with the same id.
        """
        return f"{self.name}-{hashlib.sha256(self.password.encode()).hexdigest()[:8]}"

    def at(self, url: BrokerUrl) -> BrokerUrl:
        """The same broker by another address. Raises UrlError for one that is not encrypted."""
        if not url.secure:
            raise UrlError(
                f"{url}: this device is enrolled with a password that goes over TLS only: use mqtts://"
            )
        tls = url.tls
        if not (tls.ca or tls.authority):
            tls = replace(tls, authority=ssl.DER_cert_to_PEM_cert(self.authority))
        return replace(url, user=self.name, password=self.password, tls=tls)

    @property
    def token(self) -> str:
        """The enrolment as one word of letters, digits, '.', '-' and '_'."""
        data = msgspec.msgpack.encode(self)
        return PREFIX + base64.urlsafe_b64encode(data + _check(data)).decode().rstrip("=")

    @classmethod
    def of_token(cls, token: str) -> Enrolment:
        """Read a token, or the line of `device add` that has it.

        Raises EnrolmentError, whose text has no part of the token.
        """
        text = next((word for word in token.split() if word.startswith(PREFIX)), "")
        if not text or len(text) > TOKEN_LIMIT:
            raise EnrolmentError(f"not a token of an enrolment: it begins with {PREFIX!r}, paste it whole")
        try:
            data = base64.b64decode(text[len(PREFIX) :] + "===", altchars=b"-_", validate=False)
        except (binascii.Error, ValueError):
            data = b""
        if _check(data[:-_CHECK_BYTES]) != data[-_CHECK_BYTES:]:
            raise EnrolmentError("the token of the enrolment is cut or mistyped: paste it whole")
        try:
            return msgspec.msgpack.decode(data[:-_CHECK_BYTES], type=cls)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise EnrolmentError(f"the token of the enrolment cannot be used: {error}") from None

    def save(self, folder: Path) -> None:
        """Store it durably, in place of an earlier one; only the owner can read it. Raises EnrolmentError."""
        try:
            private_folder(folder)
            replace_file(folder / FILE, msgspec.json.encode(self) + b"\n")
        except OSError as error:
            raise EnrolmentError(
                f"cannot keep the enrolment in {folder}: {error.strerror or error}"
            ) from None

    @classmethod
    def load(cls, folder: Path) -> Enrolment | None:
        """The enrolment in this folder, if there is one. Raises EnrolmentError if it cannot be read."""
        path = folder / FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EnrolmentError(f"cannot read the enrolment {path}: {error.strerror or error}") from None
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise EnrolmentError(
                f"the enrolment {path} cannot be used ({error}): enrol the device anew"
            ) from None


def _check(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECK_BYTES]
