"""Installs a device as a service, of systemd or Termux, and removes it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from device_runtime.broker.wire.durable_files import replace_file
from device_runtime.device.errors import InstallError
from device_runtime.service_process import run_program
from device_runtime.system_errors import disk_reason
from device_runtime.user_account import NoHome, config_folder, user_name

from . import system_account
from .system_account import SystemAccount

COMMAND = "device-runtime"
COMMAND_S = 60.0
"""Seconds that a service may take to start or stop."""


Manager = Literal["termux", "user", "system", ""]
"""What starts services here: runit in Termux, systemd for a user or for the machine; "": nothing known."""
MANAGERS: tuple[Manager, ...] = ("termux", "user", "system")
SYSTEM_UNITS = Path("/etc/systemd/system")


def service_manager(env: Mapping[str, str], running: Path = Path("/run/systemd/system")) -> Manager:
    """The manager for this user: root's services are the machine's, so that they need no login.

    running: the folder that systemd makes at its start (sd_booted(3)).
    """
    if in_termux(env):
        return "termux"
    if not running.is_dir():
        return ""
    return "system" if os.geteuid() == 0 else "user"


# The service as text, without I/O.

HEADROOM = 1.25
"""Kernel's memory limit over the process's own: room for the pages of its files."""


@dataclass(frozen=True)
class ServiceCommand:
    """`command` to run, with absolute paths, in `folder`. `cpu_percent` is of one core.

    `account`: as whom the machine runs it, and with which rights; None: as who installs it.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    nice: int = 0
    idle_io: bool = False
    cpu_percent: float | None = None
    memory_bytes: int | None = None
    account: SystemAccount | None = None


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

    `after` runs after its removal, when `folders` are removed too. `log` shows what it has logged.
    """

    files: tuple[ServiceFile, ...]
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...] = ()
    folders: tuple[Path, ...] = ()
    log: tuple[str, ...] = ()


def title(name: str) -> str:
    """The name of the service of this device."""
    return f"device-runtime-{name}"


def in_termux(env: Mapping[str, str]) -> bool:
    return "TERMUX_VERSION" in env or "com.termux" in env.get("PREFIX", "")


def device_service(job: ServiceCommand, env: Mapping[str, str], manager: Manager = "user") -> DeviceService:
    """The service for a manager. Raises NoHome."""
    if manager == "termux":
        return _termux(job, env)
    return _systemd(job, env, manager == "system")


def unit(job: ServiceCommand, system: bool = False) -> str:
    """A systemd unit of a user or (`system`) of the machine. Its limits are the kernel's.

    The process keeps to tighter ones itself.
    """
    lines = [
        "[Unit]",
        f"Description=Federated learning as {job.name}",
        *(["Wants=network-online.target", "After=network-online.target"] if system else []),
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
        "UMask=0077",
        *(job.account.lines() if job.account else []),
    ]
    if job.nice:
        lines.append(f"Nice={job.nice}")
    if job.idle_io:
        lines.append("IOSchedulingClass=idle")
    if job.cpu_percent is not None:
        lines.append(f"CPUQuota={job.cpu_percent:g}%")
    if job.memory_bytes is not None:
        lines.append(f"MemoryMax={int(HEADROOM * job.memory_bytes)}")
    target = "multi-user.target" if system else "default.target"
    return "\n".join([*lines, "", "[Install]", f"WantedBy={target}", ""])


def _systemd(job: ServiceCommand, env: Mapping[str, str], system: bool) -> DeviceService:
    name = f"{title(job.name)}.service"
    folder = SYSTEM_UNITS if system else config_folder() / "systemd" / "user"
    systemctl = ("systemctl",) if system else (*_bus(env), "systemctl", "--user")
    reload = (*systemctl, "daemon-reload")
    before = job.account.before() if job.account else ()
    return DeviceService(
        (ServiceFile(folder / name, unit(job, system)),),
        (*before, reload, (*systemctl, "enable", name), (*systemctl, "restart", name)),
        ((*systemctl, "disable", "--now", name),),
        (reload,),
        log=("journalctl", *([] if system else ["--user"]), "-u", title(job.name)),
    )


def _bus(env: Mapping[str, str], runtime: Path = Path("/run/user")) -> tuple[str, ...]:
    """Words before `systemctl --user` that tell it of the user's bus, where only the login did not."""
    folder = runtime / str(os.geteuid())
    if env.get("XDG_RUNTIME_DIR") or not (folder / "systemd").is_dir():
        return ()
    return ("env", f"XDG_RUNTIME_DIR={folder}")


def _termux(job: ServiceCommand, env: Mapping[str, str]) -> DeviceService:
    """A service of termux-services (runit), which Termux:Boot starts by a boot script."""
    prefix, name = Path(env.get("PREFIX") or "/data/data/com.termux/files/usr"), title(job.name)
    home = Path(env.get("HOME") or prefix.parent / "home")
    folder, shell = prefix / "var" / "service" / name, prefix / "bin" / "sh"
    run = f"#!{shell}\ncd {_worded([str(job.folder)])} || exit 1\nexec {_worded(_polite(job))} 2>&1\n"
    boot = f"#!{shell}\ntermux-wake-lock\n. {prefix}/etc/profile\n"
    logger = prefix / "share" / "termux-services" / "svlogger"
    files = (
        ServiceFile(folder / "run", run, program=True),
        ServiceFile(folder / "log" / "run", link=logger),
        ServiceFile(home / ".termux" / "boot" / name, boot, program=True),
    )
    log = ("tail", str(prefix / "var" / "log" / "sv" / name / "current"))
    return DeviceService(files, (("sv-enable", name),), (("sv-disable", name),), folders=(folder,), log=log)


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
                replace_file(file.path, file.text.encode(), mode=0o755 if file.program else 0o644)
        except OSError as error:
            raise InstallError(f"cannot write {file.path}: {disk_reason(error)}") from None


def start(service: DeviceService) -> None:
    """Start the service. Raises InstallError with what the system says; the files stay."""
    for number, command in enumerate(service.start):
        if wrong := run_command(command):
            left = " && ".join(shlex.join(step) for step in service.start[number:])
            raise InstallError(
                f"{service.files[0].path} is written, but `{shlex.join(command)}` failed: {wrong}. "
                f"{_advice(command)}: {left}"
            )


def _advice(command: Sequence[str]) -> str:
    if "--user" not in command:
        return "Mend that, and do the rest by hand"
    return (
        f"Log in as {user_name()} itself (not by su or sudo), or have root run `loginctl enable-linger "
        f"{user_name()}`, and then do the rest by hand"
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


def installed_services(name: str) -> list[DeviceService]:
    """The services of a device that are installed: of any manager, as an earlier version had another.

    With the last one of the account for devices, the account is removed, too.
    """
    services = []
    for manager in MANAGERS:
        with suppress(NoHome):
            service = device_service(ServiceCommand(name, (), Path()), os.environ, manager)
            file = service.files[0].path
            if os.path.lexists(file):
                if manager == "system" and _with_account() == [file]:
                    service = replace(service, after=(*service.after, system_account.REMOVE))
                services.append(service)
    return services


def _with_account() -> list[Path]:
    """The units of the machine that run as the account for devices."""
    units = SYSTEM_UNITS.glob(f"{title('*')}.service")
    return [path for path in units if f"\n{system_account.MARK}\n" in path.read_text(errors="replace")]


def lingers(manager: Manager) -> str:
    """How to keep services running after logout; empty if nothing is to be done, or it is not known."""
    if manager == "termux":
        return "Open the app Termux:Boot once, so that it starts with the phone."
    if manager == "system":
        return ""
    user = user_name()
    try:
        output = run_program(("loginctl", "show-user", user, "-p", "Linger"), COMMAND_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    if "Linger=yes" in output:
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
