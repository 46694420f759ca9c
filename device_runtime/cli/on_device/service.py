"""`join --service`: joins from now on in the background, and after each start of the machine."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from device_runtime.broker.errors import BrokerError, UrlError
from device_runtime.broker.security.enrolment import Enrolment
from device_runtime.broker.wire.durable_files import replace_file, write_synced
from device_runtime.broker.wire.topics import check_device
from device_runtime.broker.wire.url import BrokerUrl
from device_runtime.cli.options import memory_bytes
from device_runtime.device.connection.connecting import Connection
from device_runtime.device.delivery.offered_task import NotFetched
from device_runtime.device.errors import InstallError
from device_runtime.device.service import device_file
from device_runtime.device.service import install as service_install
from device_runtime.device.service.install import DeviceService, ServiceCommand
from device_runtime.device.service.system_account import SYSTEM_STATE, SystemAccount
from device_runtime.device.service.uninstall import PASSWORD, SETTINGS
from device_runtime.device.training.settings import Settings
from device_runtime.models.data import SampleSource, Selection
from device_runtime.models.data.report import lines
from device_runtime.models.errors import ModelError

from .planned_task import offered
from .policy_options import RULES

log = logging.getLogger(__name__)

KEPT_FILES = {"password_file": PASSWORD, "ca": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
"""Options that name files, and the names of the copies in the folder of a device of the machine."""


def check_samples(connection: Connection, settings: Settings, held_out: float | None) -> bool:
    """Hold the samples against the task that the broker offers, and print what comes of it.

    Returns False if there are some and none fits. A task that cannot be had now is no obstacle.
    """
    from .data import Judge

    try:
        with offered(connection, settings.task) as task:
            judge = Judge.of_offer(task, connection.name)
            summary = judge.report(SampleSource.of(settings.data), Selection(held_out))
    except UrlError:
        raise
    except (BrokerError, NotFetched, ModelError) as error:
        log.warning("the samples were not checked: %s", error)
        return True
    print("\n".join(lines(summary)) + "\n", flush=True)
    if summary.samples or not summary.skipped:
        return True
    print("nothing is installed: no sample fits the task. The enrolment stays.")
    return False


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
    account = _account(options) if options.system else None
    folder = connection.folder if account else Path.cwd()
    return start(ServiceCommand(connection.name, command("join", file), folder, *limits, account), file)


def for_system(options: argparse.Namespace) -> None:
    """Choose the folder of a device of the machine, before it is enrolled there. Raises InstallError."""
    if os.geteuid() != 0:
        raise InstallError("--system installs a service of the machine: run it as root, with sudo")
    if service_install.in_termux(os.environ):
        raise InstallError("--system is for systemd: in Termux give --service")
    user = BrokerUrl.parse(options.broker, insecure=True).user if options.broker else None
    name = Enrolment.of_token(options.enrol).name if options.enrol else options.name or user
    if not (name or options.state):
        raise InstallError("--system: which device? Give --enrol TOKEN, or --name as it is enrolled")
    options.service = True
    options.state = options.state or SYSTEM_STATE / check_device(name or "")


def _account(options: argparse.Namespace) -> SystemAccount:
    """The account of a device of the machine. Raises InstallError for files that it cannot read."""
    source = SampleSource.of(options.data).path
    plugins = [Path(plugin.rpartition(":")[0]) for plugin in options.plugins if ".py:" in plugin]
    paths = [path for path in (source, options.labels, *plugins) if path is not None]
    return SystemAccount.of(options.state, paths, options.device != "cpu")


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
    if getattr(options, "system", False):
        _keep_files(options)
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


def _keep_files(options: argparse.Namespace) -> None:
    """Copy the files with credentials, which the account of the machine's devices cannot read.

    Raises InstallError.
    """
    for option, name in KEPT_FILES.items():
        source: Path | None = getattr(options, option)
        target = options.state.absolute() / name
        if source is None or source == target:
            continue
        try:
            write_synced(target, source.read_bytes(), new_mode=0o600)
        except OSError as error:
            raise InstallError(f"{source} cannot be copied to {target}: {error.strerror}") from None
        setattr(options, option, target)


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
    print(f"started {service_install.title(job.name)}")
    print(_next_lines(service, job, file.parent), flush=True)
    if advice := service_install.lingers(manager):
        print(advice)
    return 0


def _next_lines(service: DeviceService, job: ServiceCommand, folder: Path) -> str:
    """What to type next: to see the log, and to take it all away."""
    sudo = "sudo " if job.account else ""
    called = shutil.which(service_install.COMMAND) == job.command[0] and not sudo
    program = service_install.COMMAND if called else shlex.quote(job.command[0])
    own = f"--state {shlex.quote(str(folder))}"
    log_line = shlex.join((*service.log, "-f"))
    rows = (("its log", log_line), ("stop and uninstall", f"{program} leave {own}"))
    return "\n".join(f"  {what + ':':20}{sudo}{line}" for what, line in rows)
