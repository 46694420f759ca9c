"""Files of blobs that are being fetched.

One preallocated file holds the bytes received so far, and behind them a map with one byte per block, 1 where
the block has arrived. Blocks are not synced one by one: after a power cut the map may be ahead of the data,
which the hash of the whole blob then shows.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from device_runtime.broker.errors import BlobError, BlockError, DiskError
from device_runtime.system_errors import disk_reason, is_of_disk

from .durable_files import move_into_place, private_opener, sync
from .messages import Blob

BLOCK = 64 * 1024
"""Bytes of every block but the last."""


def block_count(blob: Blob) -> int:
    return -(-blob.size // BLOCK)


def block_length(blob: Blob, index: int) -> int:
    """Bytes of one block. Raises BlockError when the blob has no such block."""
    if not 0 <= index < block_count(blob):
        raise BlockError(f"blob {blob.hex[:12]} has {block_count(blob)} blocks, no block {index}")
    return min(BLOCK, blob.size - index * BLOCK)


class Partial:
    """A blob that is being fetched: `add` blocks in any order, and `finish` when none is `missing`.

    Its file is in `folder` and moves to `target` at the end. It survives the process: a new object on the
    same folder continues where the last one was. May be used from several threads.
    """

    def __init__(self, blob: Blob, folder: Path, target: Path) -> None:
        self.blob = blob
        self._target = target
        self._path = self.path_of(blob, folder)
        self._file: FileIO | None = None
        self._lock = threading.Lock()
        self._digest, self._hashed = hashlib.sha256(), 0
        self._missing = set() if self._is_here() else self._begin()

    def __del__(self) -> None:
        self._close()

    @staticmethod
    def path_of(blob: Blob, folder: Path) -> Path:
        """The path in `folder` of a blob that is being fetched."""
        return folder / f"{blob.hex}-{blob.size}"

    def _is_here(self) -> bool:
        try:
            return self._target.stat().st_size == self.blob.size
        except OSError:
            return False

    def _begin(self) -> set[int]:
        """Continue with the file that is there, or make one. Returns the missing blocks."""
        size, count = self.blob.size, block_count(self.blob)
        self._digest, self._hashed = hashlib.sha256(), 0
        with disk_errors("make room for", self._path):
            length = self._path.stat().st_size if self._path.exists() else -1
            if length == size:  # it was being finished
                return set()
            if length != size + count:
                try:
                    reserve(self._path, size + count)
                except OSError:
                    self._path.unlink(missing_ok=True)
                    raise
            with self._path.open("rb") as file:
                file.seek(size)
                marks = file.read()
        return {index for index in range(count) if marks[index] != 1}

    def missing(self) -> tuple[int, ...]:
        """Block numbers that have not arrived, in order."""
        with self._lock:
            return tuple(sorted(self._missing))

    def is_gone(self) -> bool:
        """Whether the blob was finished and removed since: then only a new object can fetch it again."""
        with self._lock:
            return not self._missing and not self._is_here() and not self._path.exists()

    def add(self, index: int, data: bytes) -> bool:
        """Store one block. Returns whether it was new; a block that is already here is not changed.

        Raises BlockError on a wrong length or number, BlobError when the disk is full.
        """
        length = block_length(self.blob, index)
        if len(data) != length:
            raise BlockError(
                f"block {index} of blob {self.blob.hex[:12]} has {length} bytes, not {len(data)}"
            )
        with self._lock, disk_errors("write", self._path):
            if index not in self._missing:
                return False
            file = self._file = self._file or FileIO(self._path, "r+")
            write_at(file, index * BLOCK, data)
            write_at(file, self.blob.size + index, b"\x01")
            self._missing.discard(index)
            if index == self._hashed:
                self._digest.update(data)
                self._hashed += 1
            return True

    def rest(self) -> None:
        """Close the file until the next block comes."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> Path:
        """Verify the blob and move it to its target, durably. Returns its path.

        Raises BlobError when blocks are missing, and when the hash is wrong: then all of it is discarded,
        and this object begins again with every block missing.
        """
        with self._lock, disk_errors("finish", self._path):
            if self._missing:
                raise BlobError(f"blob {self.blob.hex[:12]} still lacks {len(self._missing)} blocks")
            self._close()
            if not self._is_here():
                self._verify()
                move_into_place(self._path, self._target)
            self._path.unlink(missing_ok=True)
            return self._target

    def _verify(self) -> None:
        """Check the hash: blocks that came in order were hashed as they came, the rest is read."""
        with self._path.open("r+b") as file:
            file.truncate(self.blob.size)
            digest = self._digest.copy()
            file.seek(self._hashed * BLOCK)
            for data in iter(lambda: file.read(BLOCK), b""):
                digest.update(data)
            sync(file.fileno())
        if digest.digest() != self.blob.sha:
            self._path.unlink()
            self._missing = self._begin()
            raise BlobError(
                f"what came as blob {self.blob.hex[:12]} has another hash: discarded, fetch it anew"
            )


def reserve(path: Path, size: int) -> None:
    """Allocate the space now, where the platform can, so that a full disk shows before the download.

    Raises OSError.
    """
    with open(path, "wb", opener=private_opener) as file:
        if size and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                    raise  # the others are of a file system that cannot say
        file.truncate(size)


def write_at(file: FileIO, offset: int, data: bytes) -> None:
    """Overwrite a part of a file. Raises OSError."""
    left = memoryview(data)
    while left:
        written = os.pwrite(file.fileno(), left, offset)
        left, offset = left[written:], offset + written


def blob_error(verb: str, path: Path, error: OSError) -> BlobError:
    """An error of the disk as a BlobError, in one line."""
    kind = DiskError if is_of_disk(error) else BlobError
    return kind(f"cannot {verb} {path}: {disk_reason(error)}")


@contextmanager
def disk_errors(verb: str, path: Path) -> Iterator[None]:
    """Raise an OSError of the block inside as BlobError: "cannot {verb} {path}: ..."."""
    try:
        yield
    except OSError as error:
        raise blob_error(verb, path, error) from error
