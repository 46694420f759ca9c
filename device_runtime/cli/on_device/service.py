"""`join --service`: joins from now on in the background, and after each start of the machine."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.cli.options import memory_bytes
from device_runtime.client.connection.connecting import Connection
from device_runtime.client.errors import InstallError
from device_runtime.client.service import device_file
from device_runtime.client.service import install as service_install
from device_runtime.client.service.install import ServiceCommand
from device_runtime.client.service.uninstall import SETTINGS

from .policy_options import RULES


def install(
    options: argparse.Namespace,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    connection: Connection,
) -> int:
    """Write the options of `join` to a file, and start a service with them. Raises InstallError."""
    options.name, options.state = connection.name, connection.folder
    file = write_settings(options, add_arguments, RULES)
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
    try:  # only the owner may read it, as the broker's URL may have a password
        replace_file(file, device_file.text(options, parser, rules).encode())
    except OSError as error:
        raise InstallError(f"cannot write {file}: {error.strerror}") from None
    return file


def command(name: str, file: Path) -> tuple[str, ...]:
    """The command of this name, with its options in a file, as a service runs it. Raises InstallError."""
    return str(service_install.program()), name, "--config", str(file)


def start(job: ServiceCommand, file: Path) -> int:
    """Install and start a service whose settings are in `file`. Raises InstallError."""
    service = service_install.device_service(job, os.environ)
    service_install.put(service)
    print(f"wrote {file} and {service.files[0].path}")
    service_install.start(service)
    print(f"started {service_install.title(job.name)}; `device-runtime leave` takes it away")
    if advice := service_install.lingers():
        print(advice)
    return 0
