"""The folder of a production broker: its names, keys, passwords and devices.

`production.init_broker` makes it, and never overwrites one. Files that hold a secret have mode 0600;
Mosquitto's user owns the files that Mosquitto reads. The aggregator needs `site.json`, `ca.pem`,
`aggregator.key`, `aggregator.password`, `devices.json` and, if its key has changed, `successions.json`.
"""

from __future__ import annotations

import os
import secrets
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from device_runtime.broker.errors import BrokerError
from device_runtime.broker.security.signing import KEY_BYTES, Signer
from device_runtime.broker.wire.durable_files import lock, move_into_place, write_synced
from device_runtime.broker.wire.messages import Succession
from device_runtime.broker.wire.url import TLS, BrokerUrl, bracketed

FORMAT = 1
SITE = "site.json"
CA, CA_KEY = "ca.pem", "ca.key"
SERVER, SERVER_KEY = "server.pem", "server.key"
CONFIGURATION, ACCESS, PASSWORDS = "mosquitto.conf", "access", "passwords"
DATA, PID = "data", "mosquitto.pid"
DEVICES = "devices.json"
LINKS = "links.json"
AGGREGATOR_KEY, AGGREGATOR_PASSWORD = "aggregator.key", "aggregator.password"
SUCCESSIONS = "successions.json"
"""The file with the changes of the aggregator's key, see `rotate_key`."""
MOST_SUCCESSIONS = 16
SUCCESSION_SHOWN_S = 365 * 86400
"""Seconds for which a change of key is sent with every offer."""
ISSUED = "issued"
"""The file with the latest time at which offers may have been issued, in seconds since 1970."""


class SetupError(BrokerError):
    """A broker's folder that is missing, damaged or invalid, or would be overwritten."""


class BrokerSetup(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of a production broker, as in `site.json`.

    `names`: host names and addresses in the certificate; devices connect to the first. `listen`: the address
    to listen at, "" for all. `websockets`: a second port, 0 for none. `run_as`: the system's user that
    Mosquitto becomes when it is started as root.
    """

    names: tuple[str, ...]
    port: int = 8883
    websockets: int = 0
    listen: str = ""
    run_as: str = ""
    aggregator: str = "aggregator"
    format: int = FORMAT

    @property
    def url(self) -> str:
        return f"mqtts://{self._host}:{self.port}"

    @property
    def web_url(self) -> str:
        """The URL of its WebSockets. Raises SetupError when it has none."""
        if not self.websockets:
            raise SetupError(
                "this broker has no WebSockets: `broker init --websockets PORT` makes one that has"
            )
        return f"wss://{self._host}:{self.websockets}/mqtt"

    @property
    def _host(self) -> str:
        return bracketed(self.names[0])


class BrokerFolder:
    """The folder of a production broker, opened. Raises SetupError when it is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        try:
            self.site = msgspec.json.decode((self.folder / SITE).read_bytes(), type=BrokerSetup)
        except FileNotFoundError:
            raise SetupError(
                f"no broker is set up in {folder}: make one with `device-runtime broker init {folder}`, "
                "or name its folder"
            ) from None
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SetupError(f"{folder / SITE} cannot be read: {error}") from None
        if self.site.format != FORMAT or not self.site.names:
            raise SetupError(f"{folder / SITE} is of format {self.site.format}, this software knows {FORMAT}")

    @property
    def signer(self) -> Signer:
        """The aggregator's signing key, made when it is first needed. Raises KeyFileError."""
        return Signer.of_file(self.folder / AGGREGATOR_KEY)

    @property
    def successions(self) -> tuple[Succession, ...]:
        """The changes from the aggregator's earlier keys to its present one, the oldest first.

        Raises SetupError.
        """
        if not (self.folder / SUCCESSIONS).exists():
            return ()
        try:
            return msgspec.json.decode(self.read(SUCCESSIONS), type=tuple[Succession, ...])
        except (msgspec.DecodeError, ValueError) as error:
            raise SetupError(f"{self.folder / SUCCESSIONS} cannot be read: {error}") from None

    @property
    def authority(self) -> bytes:
        """The certificate of the broker's authority (DER). Raises SetupError."""
        try:
            return ssl.PEM_cert_to_DER_cert(self.read(CA))
        except ValueError as error:
            raise SetupError(f"{self.folder / CA} is no certificate: {error}") from None

    @property
    def for_aggregator(self) -> BrokerUrl:
        """The broker's address with the aggregator's user name and password. Raises SetupError."""
        password = self.read(AGGREGATOR_PASSWORD).strip()
        url = BrokerUrl.parse(self.site.url, TLS(ca=self.folder / CA))
        return replace(url, user=self.site.aggregator, password=password)

    def read(self, name: str) -> str:
        """A file's text. Raises SetupError."""
        try:
            return (self.folder / name).read_text("utf-8")
        except (OSError, ValueError) as error:
            raise SetupError(f"{self.folder / name} cannot be read: {error}") from None

    def write(self, name: str, text: str) -> None:
        """Replace a file's text, with mode 0600 and the owner as before. Raises SetupError."""
        write(self.folder / name, text)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder while the enrolled devices or the key change: of two processes, one waits."""
        with (self.folder / SITE).open("rb") as file:
            lock(file.fileno(), self.folder / SITE, wait=True)
            yield


def rotate_key(opened: BrokerFolder, now: int) -> Signer:
    """Give the aggregator a new key, which its old key signs. Returns the new one.

    The signed change is stored before the key: if the key is not stored after it, the change has no effect
    and the next rotation replaces it. Raises SetupError, KeyFileError.
    """
    secret = secrets.token_bytes(KEY_BYTES)
    new = Signer(secret)
    with opened.alone():
        old = opened.signer
        successions = [
            s for s in opened.successions if s.old != old.public and s.made + SUCCESSION_SHOWN_S > now
        ]
        content = msgspec.json.encode([*successions[-MOST_SUCCESSIONS + 1 :], old.succeeded(new.public, now)])
        opened.write(SUCCESSIONS, msgspec.json.format(content).decode() + "\n")
        opened.write(AGGREGATOR_KEY, secret.hex() + "\n")
    return new


def write(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a whole file or nothing, durably, keeping the owner of an earlier one. Raises SetupError."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_synced(beside, text.encode(), new_mode=mode)
        with suppress(FileNotFoundError):
            before = path.stat()
            if os.geteuid() == 0:
                os.chown(beside, before.st_uid, before.st_gid)
        move_into_place(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise SetupError(f"cannot write {path}: {error.strerror or error}") from None
