"""A device as a service of its user: a systemd unit; in Termux runit's, and a boot script. Text only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADROOM = 1.25
"""What the kernel lets the process hold, over what it lets itself hold: room for the pages of its files."""


@dataclass(frozen=True)
class Job:
    """What is to run: `command` with absolute paths, in `folder`. `cpu_percent` is of one core."""

    name: str
    command: tuple[str, ...]
    folder: Path
    nice: int = 0
    idle_io: bool = False
    cpu_percent: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class Text:
    """A file to be written; of a script, `program` is True. A `link` leads there instead."""

    path: Path
    text: str = ""
    program: bool = False
    link: Path | None = None


@dataclass(frozen=True)
class Service:
    """Its files, and what starts and stops it; each command in turn. `folders` go when it is removed."""

    files: tuple[Text, ...]
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    after: tuple[tuple[str, ...], ...] = ()
    folders: tuple[Path, ...] = ()


def title(name: str) -> str:
    """What the service of this device is called."""
    return f"device-runtime-{name}"


def in_termux(env: Mapping[str, str]) -> bool:
    return "TERMUX_VERSION" in env or "com.termux" in env.get("PREFIX", "")


def service(job: Job, env: Mapping[str, str]) -> Service:
    """What suits the system whose environment this is."""
    return _termux(job, env) if in_termux(env) else _systemd(job, env)


def unit(job: Job) -> str:
    """A systemd user unit. Limits are the kernel's: those that the process keeps itself are tighter."""
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


def _systemd(job: Job, env: Mapping[str, str]) -> Service:
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env["HOME"]) / ".config")
    name = f"{title(job.name)}.service"
    systemctl = ("systemctl", "--user")
    reload = (*systemctl, "daemon-reload")
    return Service(
        (Text(home / "systemd" / "user" / name, unit(job)),),
        (reload, (*systemctl, "enable", name), (*systemctl, "restart", name)),
        ((*systemctl, "disable", "--now", name),),
        (reload,),
    )


def _termux(job: Job, env: Mapping[str, str]) -> Service:
    """Started by termux-services (runit), and that by Termux:Boot."""
    prefix, home, name = Path(env["PREFIX"]), Path(env["HOME"]), title(job.name)
    folder, shell = prefix / "var" / "service" / name, prefix / "bin" / "sh"
    run = f"#!{shell}\ncd {_worded([str(job.folder)])} || exit 1\nexec {_worded(_polite(job))} 2>&1\n"
    boot = f"#!{shell}\ntermux-wake-lock\n. {prefix}/etc/profile\n"
    logger = prefix / "share" / "termux-services" / "svlogger"
    files = (
        Text(folder / "run", run, program=True),
        Text(folder / "log" / "run", link=logger),
        Text(home / ".termux" / "boot" / name, boot, program=True),
    )
    return Service(files, (("sv-enable", name),), (("sv-disable", name),), folders=(folder,))


def _polite(job: Job) -> tuple[str, ...]:
    return ("nice", "-n", str(job.nice), *job.command) if job.nice else job.command


def _worded(words: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _quoted(word: str) -> str:
    """As systemd reads it, without specifiers; `:` before the command is for no variables."""
    for letter, instead in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        word = word.replace(letter, instead)
    return f'"{word}"'
