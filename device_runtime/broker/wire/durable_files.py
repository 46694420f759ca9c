"""Files that survive a power cut as a whole: written beside their place, synced, then moved into it.

All functions raise OSError.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace a file's content durably: after a crash the file has the old content or the new one.

    mode: the permissions of the new file, less those that the process does not give.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)  # a crash may have left it, with other permissions
    try:
        write_synced(beside, content, new_mode=mode)
        move_into_place(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def write_synced(path: Path, content: bytes | memoryview, new_mode: int | None = None) -> None:
    """Write a file, and wait until its content is on the disk. `sync_folder` does that for its name.

    new_mode: the permissions of a new file; then no file of that name may be there.
    """
    exists, mode = (os.O_TRUNC, 0o666) if new_mode is None else (os.O_EXCL, new_mode)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | exists, mode), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def move_into_place(temporary: Path, target: Path) -> None:
    """Move a complete, synced file into its place, durably."""
    temporary.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked_folder(folder: Path, wait: bool = True) -> Iterator[None]:
    """Lock a folder against other users of this function, in this process or another.

    The lock ends with the process, however that ends. Without `wait`, raises BlockingIOError if it is taken.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)
