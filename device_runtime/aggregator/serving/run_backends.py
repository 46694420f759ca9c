"""What a run stands on: its broker and its database, with the passwords that are in files of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from device_runtime.aggregator.errors import ConfigError, RunFolderError
from device_runtime.broker.errors import BrokerStartError
from device_runtime.broker.servers import brokers
from device_runtime.broker.servers.server import BrokerOptions, RunningBroker
from device_runtime.broker.wire.url import BrokerUrl

from . import enrolled
from .config import AUTO, BrokerSection, DatabaseSection

PORT = "port"
"""In the run folder: the broker's latest port, for the next life to start its own at the same."""


def broker_for(section: BrokerSection, folder: Path) -> tuple[RunningBroker | None, BrokerUrl]:
    """The broker to use, and the one started for it: at the port that the run had before, if that is free."""
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
    given = None if section.url == AUTO else BrokerUrl.parse(section.url, section.tls, section.insecure)
    url = enrolled.address(section.enrolment, given) if section.enrolment else given
    if url is None:
        raise ConfigError("device_runtime.broker.wire.url: expected mqtt://, mqtts:// or wss://")
    if section.password_file is None:
        return url
    password = _secret("broker.password_file", section.password_file)
    return replace(url, user=section.user, password=password)


def database_for(section: DatabaseSection) -> str:
    """As libpq has it, with the password from its file; empty for none. Raises ConfigError."""
    if not section.url or section.password_file is None:
        return section.url
    from device_runtime.aggregator.storage.postgres_session import with_password

    return with_password(section.url, _secret("database.password_file", section.password_file))


def _secret(key: str, file: Path) -> str:
    try:
        return file.read_text("utf-8").strip("\r\n")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: cannot read {file}: {error}") from None


def keep_port(folder: Path, url: BrokerUrl) -> None:
    """For `port_before` in the next life. Raises RunFolderError."""
    try:
        (folder / PORT).write_text(f"{url.port}\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / PORT}: {error.strerror or error}") from None


def port_before(folder: Path) -> int:
    """The port of the broker that an earlier life of the run started; 0 when there was none."""
    try:
        port = int((folder / PORT).read_text())
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 65536 else 0
