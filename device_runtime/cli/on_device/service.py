"""`join --service`: joins from now on in the background, and after each start of the machine."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
from collections.abc import Callable
from pathlib import Path

from device_runtime.broker.wire.durable_files import replace_file, write_synced
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.options import memory_bytes
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.errors import InstallError
from device_runtime.device.service import device_file
from device_runtime.device.service import install as service_install
from device_runtime.device.service.install import ServiceCommand
from device_runtime.device.service.uninstall import SETTINGS

from .policy_options import RULES

log = logging.getLogger(__name__)

PASSWORD = "broker-password"  # noqa: S105
"""The file in a device's folder with the broker's password, where it was in the environment."""


def install(
    options: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    connection: Connection,
    written: Callable[[], None],
) -> int:
    """Write the options of `join` to a file, and start a service with them. Raises InstallError.

    `written` is called once the file is there: it stays, whatever fails after that.
    """
    options.name, options.state = connection.name, connection.folder
    file = write_settings(options, add_arguments, RULES)
    written()
    limits = (options.nice, options.idle_io, options.cpu_percent, memory_bytes(options))
    return start(ServiceCommand(connection.name, command("join", file), Path.cwd(), *limits), file)


def write_settings(
    options: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    rules: frozenset[str] = frozenset(),
) -> Path:
    """Write a command's options to the settings file in its folder, and return the file.

    Raises InstallError.
    """
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    file: Path = options.state.absolute() / SETTINGS
    _keep_password(options)
    try:  # only the owner may read it, as the broker's URL may have a password
        replace_file(file, device_file.text(options, parser, rules).encode())
    except OSError as error:
        raise InstallError(f"cannot write {file}: {error.strerror}") from None
    return file


def _keep_password(options: argparse.Namespace) -> None:
    """Write the password that is in this process's environment to a file, as a service has another one."""
    url = BrokerUrl.parse(options.broker, insecure=True) if options.broker else None
    if options.password_file or not url or url.password is not None or not url.with_password().password:
        return
    options.password_file = options.state.absolute() / PASSWORD
    try:
        write_synced(options.password_file, f"{url.with_password().password}\n".encode(), new_mode=0o600)
    except OSError as error:
        raise InstallError(f"cannot write {options.password_file}: {error.strerror}") from None


def command(name: str, file: Path) -> tuple[str, ...]:
    """The command of this name, with its options in a file, as a service runs it. Raises InstallError."""
    return str(service_install.program()), name, "--config", str(file)


def start(job: ServiceCommand, file: Path) -> int:
    """Install and start a service whose settings are in `file`. Raises InstallError.

    One that another manager has of this device, as an earlier version made it, is removed.
    """
    manager = service_install.service_manager(os.environ)
    if not manager:
        raise InstallError(
            f"{file} is written, but neither systemd nor Termux is here to run it. Have this system do that "
            f"at each start, by its own means (OpenRC, launchd, @reboot in a crontab): "
            f"{shlex.join(job.command)}"
        )
    service = service_install.device_service(job, os.environ, manager)
    for other in service_install.installed_services(job.name):
        if other.files[0].path != service.files[0].path:
            for wrong in service_install.remove(other):
                log.warning("%s", wrong)
            print(f"removed {other.files[0].path}")
    service_install.put(service)
    print(f"wrote {file} and {service.files[0].path}", flush=True)
    service_install.start(service)
    print(f"started {service_install.title(job.name)}; `device-runtime leave` takes it away")
    if advice := service_install.lingers(manager):
        print(advice)
    return 0
