"""Files that survive a power cut as a whole: written beside their place, synced, then moved into it.

All functions raise OSError.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content durably: after a crash the file has the old content or the new one."""
    beside = path.with_name(f".{path.name}.new")
    write_synced(beside, content)
    move_into_place(beside, path)


def write_synced(path: Path, content: bytes, new: int | None = None) -> None:
    """Write a file to the disk, not its name. `new`: permissions of a file that must not be there yet."""
    exists, mode = (os.O_TRUNC, 0o666) if new is None else (os.O_EXCL, new)
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


def reserve(path: Path, size: int) -> None:
    """Allocate the space now, where the platform can, so that a full disk shows before the download."""
    with path.open("wb") as file:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)


def write_at(file: FileIO, offset: int, data: bytes) -> None:
    """Overwrite a part of a file."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file.fileno(), left, offset)
        left, offset = left[written:], offset + written
