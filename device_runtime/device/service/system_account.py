"""The account of devices that the machine runs (`join --system`): what it may read and write."""

from __future__ import annotations

import grp
import pwd
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from device_runtime.device.errors import InstallError

SYSTEM_USER = "device-runtime-device"
"""The account that all devices of a machine share. The first of them makes it."""
SYSTEM_STATE = Path("/var/lib") / SYSTEM_USER
"""Its home: a folder for each device."""
HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))  # noqa: S108 - shown by name
"""Folders that the service does not see, but for what it reads in them."""
LOOKED_AT = 1000
MARK = f"User={SYSTEM_USER}"
MAKE = (
    *("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", str(SYSTEM_STATE)),
    *("--shell", "/usr/sbin/nologin", SYSTEM_USER),
)
REMOVE = ("userdel", SYSTEM_USER)

HARDENED = (
    *("ProtectSystem=strict", "ProtectHome=tmpfs", "PrivateTmp=yes"),
    *("ProtectClock=yes", "ProtectControlGroups=yes", "ProtectHostname=yes", "ProtectKernelLogs=yes"),
    *("ProtectKernelModules=yes", "ProtectKernelTunables=yes"),
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    *("RestrictNamespaces=yes", "RestrictRealtime=yes", "RestrictSUIDSGID=yes", "LockPersonality=yes"),
    *("CapabilityBoundingSet=", "SystemCallArchitectures=native"),
    *("SystemCallFilter=@system-service", "SystemCallFilter=~@privileged", "SystemCallErrorNumber=EPERM"),
)
"""The service may read the system, write its own folder and use the network, and nothing else."""


@dataclass(frozen=True)
class SystemAccount:
    """What a device may do beside reading the system: write `folder`, its own, and read `paths`.

    `groups` are those that its samples are open to; `accelerator`: it may use the machine's devices.
    """

    folder: Path
    paths: tuple[Path, ...] = ()
    groups: tuple[str, ...] = ()
    accelerator: bool = False

    @classmethod
    def of(cls, folder: Path, paths: Iterable[Path], accelerator: bool = False) -> SystemAccount:
        """The account of the device in `folder`. Raises InstallError for paths that it could not read."""
        readable = tuple(dict.fromkeys(path.absolute() for path in paths))
        groups = {group for path in readable if (group := reading_group(path))}
        paths = (*readable, *program_folders())
        for path in paths:
            check_way(path)
        return cls(folder, paths, tuple(sorted(groups)), accelerator)

    def lines(self) -> list[str]:
        """The lines of the unit's section [Service] that make the process this account's."""
        seen = [path for path in self.paths if _is_hidden(path)]
        return [
            MARK,
            f"Environment=HOME={_path(SYSTEM_STATE)}",
            *([f"SupplementaryGroups={' '.join(self.groups)}"] if self.groups else []),
            *HARDENED,
            *([] if self.accelerator else ["PrivateDevices=yes"]),
            f"ReadWritePaths={_path(self.folder)}",
            *(f"BindReadOnlyPaths={_path(path)}" for path in dict.fromkeys(seen)),
        ]

    def before(self) -> tuple[tuple[str, ...], ...]:
        """Commands that make the account, unless it is there, and give it its folder."""
        give = ("chown", "-R", f"{SYSTEM_USER}:{SYSTEM_USER}", str(self.folder))
        return (give,) if exists() else (MAKE, give)


def exists() -> bool:
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return False
    return True


def reading_group(path: Path) -> str:
    """The group by which the account reads a file or what lies in a folder; empty if everybody may.

    Raises InstallError where it may not. Folders above do not matter. Only LOOKED_AT files are looked at.
    """
    paths = [path, *islice(path.rglob("*"), LOOKED_AT)] if path.is_dir() else [path]
    states = [(each, each.stat()) for each in paths if each.exists()]
    closed = [(each, state) for each, state in states if not _open_to(state.st_mode, 0)]
    groups = {state.st_gid if _open_to(state.st_mode, 3) else 0 for _, state in closed}
    if 0 in groups or len(groups) > 1:
        raise InstallError(
            f"{closed[0][0]} cannot be read by {SYSTEM_USER}, as whom --system runs the device: open it to "
            f"all by `chmod -R o+rX {path}`, or to one group by `chgrp -R GROUP {path}` and `chmod -R g+rX "
            f"{path}`"
        )
    gid = next(iter(groups), 0)
    try:
        return grp.getgrgid(gid).gr_name if groups else ""
    except KeyError:
        return str(gid)


def check_way(path: Path) -> None:
    """Raises InstallError where a folder above the path is closed to the account.

    In HIDDEN this does not matter: the service sees the path there by a mount of its own.
    """
    for folder in () if _is_hidden(path) else path.resolve().parents:
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
            raise InstallError(
                f"{folder} is closed to {SYSTEM_USER}, as whom --system runs the device, and {path} lies in "
                f"it: open the way by `chmod o+x {folder}`, or install device-runtime below /opt"
            )


def _is_hidden(path: Path) -> bool:
    return any(path.is_relative_to(hidden) for hidden in HIDDEN)


def _open_to(mode: int, shift: int) -> bool:
    """Whether others (`shift` 0) or the group (3) may read a file, or enter and list a folder."""
    needs = 0o5 if stat.S_ISDIR(mode) else 0o4
    return mode >> shift & needs == needs


def program_folders() -> tuple[Path, ...]:
    """Where this program and its Python are, wherever they were installed."""
    package = Path(__file__).resolve().parents[3]
    return tuple(dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix).resolve(), package)))


def _path(path: Path) -> str:
    """A path as a unit's settings take it. Raises InstallError for one that they cannot have."""
    if any(letter in str(path) for letter in ':"\\\n'):
        raise InstallError(f"{path}: a unit takes no path with a colon, a quote, a backslash or a new line")
    text = str(path).replace("%", "%%")
    return f'"{text}"' if " " in text else text
