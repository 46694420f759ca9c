"""Installs and removes a device as a service of its user: a systemd unit, or runit's in Termux."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from device_runtime.client.errors import InstallError
from device_runtime.client.external_programs import run_program

COMMAND = "device-runtime"
COMMAND_S = 60.0
"""Seconds that a service may take to start or stop."""


# The service as text, without I/O.

HEADROOM = 1.25
"""Kernel's memory limit over the process's own: room for the pages of its files."""


@dataclass(frozen=True)
class ServiceCommand:
    """`command` to run, with absolute paths, in `folder`. `cpu_percent` is of one core."""

    name: str
    command: tuple[str, ...]
    folder: Path
    nice: int = 0
    idle_io: bool = False
    cpu_percent: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class ServiceFile:
    """A file to write; `program` marks a script. With `link`, a symbolic link to it is made instead."""

    path: Path
    text: str = ""
    program: bool = False
    link: Path | None = None


@dataclass(frozen=True)
class DeviceService:
    """The files of a service, and the commands that start and stop it, each in turn.

    `after` runs after its removal, when `folders` are removed too.
    """

    files: tuple[ServiceFile, ...]
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...] = ()
    folders: tuple[Path, ...] = ()


def title(name: str) -> str:
    """The name of the service of this device."""
    return f"device-runtime-{name}"


def in_termux(env: Mapping[str, str]) -> bool:
    return "TERMUX_VERSION" in env or "com.termux" in env.get("PREFIX", "")


def device_service(job: ServiceCommand, env: Mapping[str, str]) -> DeviceService:
    """The service for the system with this environment."""
    return _termux(job, env) if in_termux(env) else _systemd(job, env)


def unit(job: ServiceCommand) -> str:
    """A systemd user unit. Its limits are the kernel's; the process keeps to tighter ones itself."""
    lines = [
        "[Unit]",
        f"Description=Federated learning as {job.name}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart=:{' '.join(map(_quoted, job.command))}",
        f"WorkingDirectory={str(job.folder).replace('%', '%%')}",
        "Restart=on-failure",
        "RestartSec=30",
        "TimeoutStopSec=30",
        "OOMScoreAdjust=500",
        "OOMPolicy=continue",
        "NoNewPrivileges=yes",
    ]
    if job.nice:
        lines.append(f"Nice={job.nice}")
    if job.idle_io:
        lines.append("IOSchedulingClass=idle")
    if job.cpu_percent is not None:
        lines.append(f"CPUQuota={job.cpu_percent:g}%")
    if job.memory_bytes is not None:
        lines.append(f"MemoryMax={int(HEADROOM * job.memory_bytes)}")
    return "\n".join([*lines, "", "[Install]", "WantedBy=default.target", ""])


def _systemd(job: ServiceCommand, env: Mapping[str, str]) -> DeviceService:
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env["HOME"]) / ".config")
    name = f"{title(job.name)}.service"
    systemctl = ("systemctl", "--user")
    reload = (*systemctl, "daemon-reload")
    return DeviceService(
        (ServiceFile(home / "systemd" / "user" / name, unit(job)),),
        (reload, (*systemctl, "enable", name), (*systemctl, "restart", name)),
        ((*systemctl, "disable", "--now", name),),
        (reload,),
    )


def _termux(job: ServiceCommand, env: Mapping[str, str]) -> DeviceService:
    """A service of termux-services (runit), which Termux:Boot starts by a boot script."""
    prefix, home, name = Path(env["PREFIX"]), Path(env["HOME"]), title(job.name)
    folder, shell = prefix / "var" / "service" / name, prefix / "bin" / "sh"
    run = f"#!{shell}\ncd {_worded([str(job.folder)])} || exit 1\nexec {_worded(_polite(job))} 2>&1\n"
    boot = f"#!{shell}\ntermux-wake-lock\n. {prefix}/etc/profile\n"
    logger = prefix / "share" / "termux-services" / "svlogger"
    files = (
        ServiceFile(folder / "run", run, program=True),
        ServiceFile(folder / "log" / "run", link=logger),
        ServiceFile(home / ".termux" / "boot" / name, boot, program=True),
    )
    return DeviceService(files, (("sv-enable", name),), (("sv-disable", name),), folders=(folder,))


def _polite(job: ServiceCommand) -> tuple[str, ...]:
    return ("nice", "-n", str(job.nice), *job.command) if job.nice else job.command


def _worded(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _quoted(word: str) -> str:
    """Quoted for systemd, without specifiers; `:` before the command turns off variables."""
    for letter, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        word = word.replace(letter, instead)
    return f'"{word}"'


def program() -> Path:
    """The installed command that is running. Raises InstallError."""
    beside, called = Path(sys.executable).with_name(COMMAND), Path(sys.argv[0]).absolute()
    if beside.exists():
        return beside
    if called.name == COMMAND and called.exists():  # installed for this user only
        return called
    raise InstallError(
        f"{beside} is not there: install device-runtime in the environment of {sys.executable}"
    )


def put(service: DeviceService) -> None:
    """Write the service's files. Raises InstallError."""
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


def start(service: DeviceService) -> None:
    """Start the service. Raises InstallError with what the system says; the files stay."""
    for command in service.start:
        if wrong := run_command(command):
            raise InstallError(
                f"{service.files[0].path} is written, but `{' '.join(command)}` failed: {wrong}. "
                "Log in as the user whom it is for, and do that by hand"
            )


def remove(service: DeviceService) -> Iterator[str]:
    """Stop the service and remove its files; yields what failed."""
    for command in service.stop:
        if wrong := run_command(command):
            yield f"`{' '.join(command)}` failed: {wrong}"
    for file in service.files:
        with suppress(FileNotFoundError):
            file.path.unlink()
    for folder in service.folders:
        shutil.rmtree(folder, ignore_errors=True)
    for command in service.after:
        run_command(command)


def installed_service(name: str) -> DeviceService | None:
    """The service of a device, if one is installed."""
    service = device_service(ServiceCommand(name, (), Path()), os.environ)
    return service if service.files[0].path.exists() else None


def lingers() -> str:
    """How to keep services running after logout; empty if nothing is to be done, or it is not known."""
    if in_termux(os.environ):
        return "Open the app Termux:Boot once, so that it starts with the phone."
    user = getuser()
    try:
        told = run_program(("loginctl", "show-user", user, "-p", "Linger"), COMMAND_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "Linger=yes" in told:
        return ""
    return (
        f"It ends when you log out; `loginctl enable-linger {user}` keeps it, and starts it with the machine."
    )


def run_command(command: Sequence[str]) -> str:
    """Run a command. Returns an empty text if it succeeded, else what it says."""
    try:
        done = run_program(command, COMMAND_S)
    except FileNotFoundError:
        return f"{command[0]} is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}")
