"""Files that survive a power cut as a whole: written beside their place, synced, then moved into it.

Network shares, FUSE, virtiofs and vfat cannot do all of this: what a file system does not support is passed
over, and `unsupported` says what that is. All functions raise OSError, which names the file.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

log = logging.getLogger(__name__)

PRIVATE = 0o600
"""Mode of files that only their owner reads."""
UNSUPPORTED = frozenset(
    (
        *(errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTTY, errno.EISDIR),
        *(errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK),
    )
)
"""How file systems say that they do not do something, for calls that are right."""


def replace_file(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace a file's content durably: after a crash the file has the old content or the new one.

    mode: the permissions of the new file, less those that the process does not give.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)  # a crash may have left it, with other permissions
        write_synced(beside, content, new_mode=mode)
        move_into_place(beside, path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise _named(error, path) from None


def write_synced(path: Path, content: bytes | memoryview, new_mode: int | None = None) -> None:
    """Write a file, and wait until its content is on the disk. `sync_folder` does that for its name.

    new_mode: the permissions of a new file; then no file of that name may be there.
    """
    exists, mode = (os.O_TRUNC, PRIVATE) if new_mode is None else (os.O_EXCL, new_mode)
    with (
        names_file(path),
        os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | exists, mode), "wb") as file,
    ):
        file.write(content)
        file.flush()
        sync(file.fileno())


def move_into_place(temporary: Path, target: Path) -> None:
    """Move a complete, synced file into its place, durably."""
    with names_file(target):
        temporary.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable, where its file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        if error.errno in (*UNSUPPORTED, errno.EACCES, errno.EPERM):  # written to, but not listed
            return
        raise
    try:
        with names_file(folder):
            sync(handle)
    finally:
        os.close(handle)


def sync(handle: int) -> None:
    """Wait until an open file or folder is on the disk; returns at once if its file system cannot say."""
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def lock(handle: int, path: Path, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed. False, with a warning, if its file system cannot.

    Without `wait`, raises BlockingIOError if it is taken.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise _named(error, path) from None
        _warn_of_no_lock(path)
        return False
    return True


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner may enter; one that is there stays as it is."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def shut_to_others(folder: Path) -> None:
    """Take from others what they may do in a folder of ours and with its files, and say so.

    Earlier versions left them the permissions of the umask. Only a folder in which others have rights is
    changed: one that was given to a group alone stays. So do what may not be changed, a folder of all
    (as /tmp), and the working folder, which has other things.
    """
    try:
        if not (before := folder.stat().st_mode) & 0o007 or before & stat.S_ISVTX:
            return
        if Path.cwd().is_relative_to(folder.resolve()):
            return
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for path in (*entries, folder):
        with suppress(OSError):
            if not path.is_symlink():
                path.chmod(stat.S_IMODE(path.stat().st_mode) & 0o700)
    with suppress(OSError):
        if folder.stat().st_mode != before:  # some file systems accept it and do nothing
            log.warning("%s was open to others on this machine: now only its owner may enter it", folder)


def private_opener(path: str, flags: int) -> int:
    """For `open(.., opener=private_opener)`: a new file is for its owner only."""
    return os.open(path, flags, PRIVATE)


@contextmanager
def locked_folder(folder: Path, wait: bool = True) -> Iterator[None]:
    """Lock a folder against other users of this function, in this process or another.

    The lock ends with the process, however that ends. Without `wait`, raises BlockingIOError if it is taken.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock(handle, folder, wait)
        yield
    finally:
        os.close(handle)


def unsupported(folder: Path) -> tuple[str, ...]:
    """Tries what files need in a folder, and returns in words what its file system does not support."""
    path = folder / f".trial-{secrets.token_hex(4)}"
    beside = path.with_name(f"{path.name}.new")
    try:
        replace_file(path, b"1")
        replace_file(path, b"2", mode=0o640)
        handles = [os.open(folder, os.O_RDONLY), os.open(path, os.O_RDWR)]
        try:
            trials: dict[str, Callable[[], object]] = {
                "a power cut may lose files that were synced": lambda: os.fsync(handles[1]),
                "a power cut may lose the names of new files": lambda: os.fsync(handles[0]),
                "nothing keeps a second process from it": lambda: fcntl.flock(
                    handles[1], fcntl.LOCK_EX | fcntl.LOCK_NB
                ),
            }
            lacking = [words for words, trial in trials.items() if not _works(trial)]
        finally:
            for handle in handles:
                os.close(handle)
        if path.stat().st_mode & 0o007:
            lacking.append("others may read what is in it")
        return tuple(lacking)
    finally:
        for file in (path, beside):
            with suppress(OSError):
                file.unlink(missing_ok=True)


def free_bytes(folder: Path) -> int | None:
    """The bytes that are free for a folder; None where its file system does not say.

    Some that are FUSE say that they have no bytes at all.
    """
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        if error.errno in (*UNSUPPORTED, errno.EPERM, errno.EACCES):
            return None
        raise
    return usage.free if usage.total else None


def _works(trial: Callable[[], object]) -> bool:
    try:
        trial()
    except OSError as error:
        if error.errno in UNSUPPORTED:
            return False
        raise
    return True


@contextmanager
def names_file(path: Path) -> Iterator[None]:
    """Inside, an OSError without a file's name gets this one: a write's error has none."""
    try:
        yield
    except OSError as error:
        raise _named(error, path) from None


def _named(error: OSError, path: Path) -> OSError:
    """The error with the name of the file that was meant, not of the one beside it."""
    if error.errno is None:
        return error
    return OSError(error.errno, error.strerror or os.strerror(error.errno), str(path))


@cache
def _warn_of_no_lock(path: Path) -> None:
    log.warning("%s cannot be locked: its file system has no locks; start no second process in it", path)
