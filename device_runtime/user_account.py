"""The folders and the name of the user, also where HOME is not set or the user is in no passwd.

Containers run as numbers that no passwd knows; services run without HOME.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import platformdirs

APP = "device-runtime"
TEMPORARY = "tmp"
"""Folder for temporary files, in a device's own."""


class NoHome(Exception):
    """There is no folder of the user's; the text says how to name one."""


def state_folder() -> Path:
    """The folder that holds a folder for each device of this user. Raises NoHome."""
    return _folder(platformdirs.user_state_dir, "XDG_STATE_HOME", ", or name the folder (--state)")


def data_folder() -> Path:
    """Raises NoHome."""
    return _folder(lambda app: platformdirs.user_data_dir(app, appauthor=False), "XDG_DATA_HOME")


def cache_folder() -> Path:
    """Raises NoHome."""
    return _folder(platformdirs.user_cache_dir, "XDG_CACHE_HOME")


def config_folder() -> Path:
    """The folder of all programs' settings. Raises NoHome."""
    return _folder(lambda _: os.environ.get("XDG_CONFIG_HOME") or _below_home(".config"), "XDG_CONFIG_HOME")


def expanded(path: str | Path) -> Path:
    """The path with "~" or "~USER" replaced by that user's folder. Raises NoHome where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise NoHome(
            f"{path} is below a home folder, and there is none: HOME is not set to one, and passwd has none. "
            "Give a full path"
        ) from None


def provide_temporary_folder(folder: Path | None = None) -> None:
    """Has temporary files made in `folder` (None: that of this user's devices) where the system has none.

    Where that cannot be either, the first temporary file raises FileNotFoundError.
    """
    import tempfile  # 0.3 MB, which an idle device does without

    try:
        tempfile.gettempdir()
    except OSError:
        with suppress(OSError, NoHome):
            place = (folder or state_folder()) / TEMPORARY
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.tempdir = os.environ["TMPDIR"] = str(place)


def user_name() -> str:
    """The user's name; the number where none is known."""
    import pwd

    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _folder(of: Callable[[str], str], variable: str, more: str = "") -> Path:
    try:
        path = Path(of(APP))
    except RuntimeError:  # platformdirs from 4.4 on; earlier ones return "~/.local/state"
        path = Path()
    if path.is_absolute():
        return path
    raise NoHome(
        f"user {user_name()} has no home folder: HOME is not set to one, and passwd has none. "
        f"Set HOME or {variable}{more}"
    )


def _below_home(name: str) -> str:
    return os.path.join(os.path.expanduser("~"), name)  # noqa: PTH111, PTH118 - Path raises RuntimeError
