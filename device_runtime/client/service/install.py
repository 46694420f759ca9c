"""Putting a device's service on this machine, and taking it away."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from getpass import getuser
from pathlib import Path

from device_runtime.client.errors import InstallError
from device_runtime.client.policy import external_programs as programs

from . import service_unit
from .service_unit import Job, Service

COMMAND = "device-runtime"
COMMAND_S = 60.0
"""Seconds that a service may take to start or stop."""


def program() -> Path:
    """The command that is running, where it is installed. Raises InstallError."""
    beside, called = Path(sys.executable).with_name(COMMAND), Path(sys.argv[0]).absolute()
    if beside.exists():
        return beside
    if called.name == COMMAND and called.exists():  # installed for this user only
        return called
    raise InstallError(
        f"{beside} is not there: install device-runtime in the environment of {sys.executable}"
    )


def put(service: Service) -> None:
    """Write its files. Raises InstallError."""
    for file in service.files:
        try:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            if file.link is not None:
                file.path.unlink(missing_ok=True)
                file.path.symlink_to(file.link)
            else:
                file.path.write_text(file.text)
                file.path.chmod(0o755 if file.program else 0o644)
        except OSError as error:
            raise InstallError(f"cannot write {file.path}: {error.strerror}") from None


def start(service: Service) -> None:
    """Raises InstallError with what the system says: its files are there then."""
    for command in service.start:
        if wrong := ran(command):
            raise InstallError(
                f"{service.files[0].path} is written, but `{' '.join(command)}` failed: {wrong}. "
                "Log in as the user whom it is for, and do that by hand"
            )


def remove(service: Service) -> Iterator[str]:
    """Stop it and remove its files; what is not done is told."""
    for command in service.stop:
        if wrong := ran(command):
            yield f"`{' '.join(command)}` failed: {wrong}"
    for file in service.files:
        with suppress(FileNotFoundError):
            file.path.unlink()
    for folder in service.folders:
        shutil.rmtree(folder, ignore_errors=True)
    for command in service.after:
        ran(command)


def of(name: str) -> Service | None:
    """The service of a device, where one is installed."""
    service = service_unit.service(Job(name, (), Path()), os.environ)
    return service if service.files[0].path.exists() else None


def lingers() -> str:
    """What is to be done so that services outlive a login; empty where nothing is, or nobody knows."""
    if service_unit.in_termux(os.environ):
        return "Open the app Termux:Boot once, so that it starts with the phone."
    user = getuser()
    try:
        told = programs.asked(("loginctl", "show-user", user, "-p", "Linger"), COMMAND_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "Linger=yes" in told:
        return ""
    return (
        f"It ends when you log out; `loginctl enable-linger {user}` keeps it, and starts it with the machine."
    )


def ran(command: Sequence[str]) -> str:
    """Empty where it did its work; else what it says."""
    try:
        done = programs.asked(command, COMMAND_S)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
