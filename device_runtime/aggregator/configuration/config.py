"""Settings of the service: a TOML file, with flags over it; opens its broker and database by them.

Tasks have settings of their own (`tasks.task`). Passwords are in files of their own.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from device_runtime.aggregator.errors import ConfigError, RunFolderError
from device_runtime.aggregator.limits import MOST_DEVICES
from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.broker_folder import SERVER, SERVER_KEY
from device_runtime.broker.servers.server import BrokerOptions, RunningBroker
from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.broker.wire.url import PASSWORD_VARIABLE, TLS, BrokerUrl, is_loopback
from device_runtime.console import LogFormat
from device_runtime.content import explained, read_toml
from device_runtime.strategies.settings import Setting
from device_runtime.user_account import expanded

from . import enrolled

log = logging.getLogger(__name__)

AUTO = "auto"
PORT = "port"
"""File in the run folder: the broker's latest port, so that a restart can use the same one."""
LogLevel = Literal["debug", "info", "warning", "error"]
Port = Annotated[int, Meta(ge=0, le=65535)]


def _together(section: str, cert: Path | None, key: Path | None) -> None:
    if (cert is None) != (key is None):
        raise ConfigError(f"{section}.cert and {section}.key go together: give both, or neither")


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the server file."""


class BrokerSection(Section, frozen=True):
    """The broker.

    user, password_file: override those of the URL; a password alone is for the user of the URL.
    cert, key: the aggregator's certificate, where the broker asks for one.
    """

    url: Annotated[
        str,
        Setting(
            "Connect to this broker, mqtts://user@host; auto starts one on this machine.",
            "mqtts://fl@example.org",
            flag="broker",
            metavar="URL",
        ),
    ] = AUTO
    port: Annotated[
        Port,
        Setting(
            "Set the port of the broker that auto starts.", 1883, none="as before, or a free one", flag="port"
        ),
    ] = 0
    user: str | None = None
    password_file: Annotated[
        Path | None,
        Setting(
            "Read the broker's password from this file.",
            "password",
            none=f"from {PASSWORD_VARIABLE}",
            flag="password-file",
            metavar="FILE",
        ),
    ] = None
    ca: Annotated[
        Path | None,
        Setting(
            "Trust this authority of the broker's certificate.",
            "ca.pem",
            none="the system's",
            flag="ca",
            metavar="PEM",
        ),
    ] = None
    cert: Path | None = None
    key: Path | None = None
    insecure: Annotated[
        bool,
        Setting("Allow mqtt:// over a network, in the clear; with --web HTTP, too.", True, flag="insecure"),
    ] = False
    enrolment: Annotated[
        Path | None,
        Setting(
            "Take broker, credential and key of offers from this folder of `broker init`.",
            "enrolment",
            flag="enrolment",
            metavar="DIR",
        ),
    ] = None

    @property
    def tls(self) -> TLS:
        return TLS(ca=self.ca, cert=self.cert, key=self.key)

    def __post_init__(self) -> None:
        if self.user is not None and self.password_file is None:
            raise ConfigError("broker.user and broker.password_file go together: give both, or neither")
        _together("broker", self.cert, self.key)
        if self.port and self.url != AUTO:
            raise ConfigError(
                "broker.port is for a broker that is started here, and broker.url is given: choose"
            )


class HttpSection(Section, frozen=True):
    """The HTTP server.

    port: 0 takes a free one.
    cert, key: the certificate of HTTPS, which other machines need.
    insecure: other machines may use HTTP, because a proxy provides HTTPS.
    proxies: addresses and networks whose X-Forwarded-For header is trusted.
    stay: answer until stopped, also when all tasks are done.
    stalled_s: /healthz reports an error when the loop has stalled for this many seconds.
    min_free_mb: /healthz reports an error when fewer megabytes of the disk are free.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    token_file: Annotated[
        Path | None,
        Setting(
            "Ask for the token of this file over HTTP.",
            "token",
            none="made, in the run folder",
            flag="token-file",
            metavar="FILE",
        ),
    ] = None
    open: Annotated[
        bool, Setting("Serve HTTP without a token, on this machine only.", True, flag="http-open")
    ] = False
    cert: Path | None = None
    key: Path | None = None
    insecure: bool = False
    proxies: tuple[str, ...] = ()
    stay: bool = False
    stalled_s: Annotated[float, Meta(gt=0)] = 600.0
    min_free_mb: Annotated[int, Meta(ge=0)] = 100

    def __post_init__(self) -> None:
        _together("http", self.cert, self.key)
        if self.open and self.token_file:
            raise ConfigError("http.open = true asks for no token, but http.token_file names one: choose")
        for proxy in self.proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ConfigError(f"http.proxies: expected addresses and networks: {error}") from None
        if is_loopback(self.host):
            return
        if self.open:
            raise ConfigError(
                f"http.open = true on {self.host} would show everything to the network: "
                "use a token, or http.host = '127.0.0.1'"
            )
        if not self.cert and not self.insecure:
            raise ConfigError(
                f"http.host = {self.host} would send the token over the network in the clear: give http.cert "
                "and http.key, or http.insecure = true where a proxy in front of it speaks HTTPS"
            )


class WebSection(Section, frozen=True):
    """The page by which a browser becomes a device.

    address: how browsers reach it; None: at http.host and http.port.
    broker: the URL of the broker's WebSockets; None: browsers connect through the aggregator.
    link_minutes: the time for which a one-time link is valid.
    """

    address: str | None = None
    broker: str | None = None
    link_minutes: Annotated[float, Meta(gt=0, le=7 * 24 * 60)] = 15.0

    def __post_init__(self) -> None:
        parts = urlsplit(self.address or "https://x")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ConfigError(f"web.address = {self.address}: expected https://host, with a port or a path")


class DatabaseSection(Section, frozen=True):
    """The database of the runs: in PostgreSQL each run has its own schema.

    The password, if any, is in `password_file`, or where libpq looks (PGPASSWORD, ~/.pgpass).
    """

    url: Annotated[
        str,
        Setting(
            "Keep the run in postgresql://user@host/db.",
            "postgresql://fl@db/fl",
            flag="database",
            none="SQLite in the run folder",
            metavar="URL",
        ),
    ] = ""
    password_file: Path | None = None

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("postgresql://", "postgres://")):
            raise ConfigError("database.url: expected postgresql://user@host:5432/database")
        if self.password_file and not self.url:
            raise ConfigError("database.password_file needs database.url")


class LogSection(Section, frozen=True):
    """The log on stderr."""

    format: Annotated[
        LogFormat | None,
        Setting("Write the log with times and fields.", "json", flag="log-format", none="bare lines"),
    ] = None
    level: LogLevel = "info"


class ServerConfig(Section, frozen=True):
    """The whole server file.

    tasks: task files.
    run_dir: with several tasks, the folder that has a run folder for each task, by its name (None: runs).
    """

    tasks: tuple[Path, ...] = ()
    run_dir: Annotated[
        Path | None,
        Setting(
            "Keep the run in this folder; a run that is there goes on.",
            "runs/digits",
            none="runs/NAME",
            metavar="DIR",
        ),
    ] = None
    workers: Annotated[
        int, Meta(ge=0, le=64), Setting("Check small contributions in this many processes.", 2, none="none")
    ] = 0
    max_devices: Annotated[
        int, Meta(ge=1), Setting("Know this many devices at a time, and count no more in a round.", 1000)
    ] = MOST_DEVICES
    broker: Annotated[BrokerSection, Setting("The broker.", {})] = BrokerSection()
    http: Annotated[HttpSection | None, Setting("The HTTP server.", {}, none="no HTTP")] = None
    web: WebSection | None = None
    database: Annotated[DatabaseSection, Setting("The database.", {})] = DatabaseSection()
    log: Annotated[LogSection, Setting("The log.", {})] = LogSection()


def load(path: Path | None, flags: Mapping[str, object]) -> ServerConfig:
    """Reads a server file, if any, with `flags` over it, as keys and tables.

    Paths in the file are relative to the file, and full in what is returned, as those of tasks are. Raises
    ConfigError with the file and the key.
    """
    settings = _read(path) if path else {}
    for key, value in flags.items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, Mapping) else value
    if "web" in settings:
        settings["http"] = _for_pages(settings.get("http", {}), settings.get("broker", {}))
    where = f"{path}: " if path else ""
    try:
        folder = path.parent.resolve() if path else Path.cwd()
        return msgspec.convert(settings, ServerConfig, dec_hook=partial(_path, folder))
    except msgspec.ValidationError as error:
        cause = error.__cause__
        text = str(cause) if isinstance(cause, ConfigError) else explained(error, ServerConfig)
        raise ConfigError(where + text) from None


def http_keys(address: str, flag: str) -> dict[str, object]:
    """HOST:PORT, :PORT or PORT, as keys of [http]; `flag` names it in an error. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise ConfigError(f"{flag} {address}: expected HOST:PORT, or a port of this machine")
    name = host.removeprefix("[").removesuffix("]")
    return {"port": int(port), **({"host": name} if name else {})}


def _for_pages(http: dict[str, Any], broker: dict[str, Any]) -> dict[str, Any]:
    """HTTP settings for the page: on a network with the enrolment's certificate, if no other is given."""
    enrolment, host = broker.get("enrolment"), http.get("host", "")
    if enrolment is None or not isinstance(host, str) or is_loopback(host or "127.0.0.1"):
        return http
    if {"cert", "key", "insecure"} & set(http):
        return http
    form = type(enrolment)  # a text is near the file
    return {**http, "cert": form(Path(enrolment) / SERVER), "key": form(Path(enrolment) / SERVER_KEY)}


def _read(path: Path) -> dict[str, Any]:
    settings = read_toml(path, ConfigError)
    for section in ("broker", "database", "http", "log", "web"):
        if not isinstance(settings.get(section, {}), dict):
            raise ConfigError(f"{path}: {section}: expected a table, [{section}]")
    return settings


def _path(folder: Path, kind: type, value: object) -> object:
    """Decodes a path; a text is that of the file in `folder`."""
    if kind is Path and isinstance(value, str | Path):
        return folder / expanded(value) if isinstance(value, str) else value
    raise TypeError("expected a path, as a string")


def broker_for(section: BrokerSection, folder: Path) -> tuple[RunningBroker | None, BrokerUrl]:
    """Starts a broker if the settings ask for one, and returns it (else None) and the URL to use.

    It starts at the port that the run had before, if that is free. Raises BrokerStartError, ConfigError.
    """
    if section.url != AUTO or section.enrolment:
        return None, _address(section)
    before = 0 if section.port else port_before(folder)
    try:
        broker = brokers.start("auto", BrokerOptions(port=section.port or before))
    except BrokerStartError:
        if not before:
            raise
        broker = brokers.start("auto", BrokerOptions())
    return broker, BrokerUrl.parse(broker.url)


def _address(section: BrokerSection) -> BrokerUrl:
    address = None if section.url == AUTO else BrokerUrl.parse(section.url, section.tls, section.insecure)
    url = enrolled.broker_address(section.enrolment, address) if section.enrolment else address
    if url is None:
        raise ConfigError("broker.url: expected mqtt://, mqtts:// or wss://")
    if section.enrolment is None and not url.loopback:
        log.warning(
            "no devices are enrolled at %s: whoever may connect to it can send updates under any name, and "
            "offers of its own to devices; `broker init` and --enrolment DIR keep strangers out",
            url,
        )
    if section.password_file is None:
        return url.with_password()
    if section.user is None and not url.user:
        raise ConfigError("broker.password_file: for whom? Name the user in the URL, or by broker.user")
    password = _secret("broker.password_file", section.password_file)
    return replace(url, user=section.user or url.user, password=password)


def renewal(section: BrokerSection) -> Callable[[], BrokerUrl] | None:
    """Gives the broker's URL with the credentials as they are on the disk now; None for a broker of our own.

    What it returns raises ConfigError and SetupError, if they cannot be read.
    """
    if section.url == AUTO and not section.enrolment:
        return None
    return partial(_address, section)


def database_for(section: DatabaseSection) -> str:
    """The database's URL for libpq, with the password from its file; empty for none. Raises ConfigError."""
    if not section.url or section.password_file is None:
        return section.url
    from device_runtime.aggregator.storage.postgres import with_password

    return with_password(section.url, _secret("database.password_file", section.password_file))


def _secret(key: str, file: Path) -> str:
    try:
        return file.read_text("utf-8").strip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: cannot read {file}: {error}") from None


def keep_port(folder: Path, url: BrokerUrl) -> None:
    """Stores the broker's port, for `port_before` after a restart. Raises RunFolderError."""
    try:
        replace_file(folder / PORT, f"{url.port}\n".encode())
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / PORT}: {error.strerror or error}") from None


def port_before(folder: Path) -> int:
    """The port of the broker that the run used last; 0 when there is none."""
    try:
        port = int((folder / PORT).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0
