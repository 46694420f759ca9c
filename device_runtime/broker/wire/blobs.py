"""Stores blobs, which are files named by their sha256, in a folder.

One process owns a folder; its workers may read in it and put. The folder holds `{sha}` for each whole blob
and, in `partial/`, the blobs that are being fetched.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from device_runtime.broker.errors import BlobError, NoRoom

from .durable_files import free_bytes, move_into_place, private_folder, write_synced
from .messages import Blob
from .partial_blob import BLOCK, Partial, blob_error, block_count, block_length, disk_errors

__all__ = [
    "BLOCK",
    "MAX_BYTES",
    "BlobRoom",
    "Blobs",
    "Partial",
    "blob_of",
    "block_count",
    "block_length",
]

MAX_BYTES = 4 * 1024**3
"""Bytes. A larger blob is refused unless the store was told otherwise."""


def blob_of(data: bytes | memoryview) -> Blob:
    """The hash and size of these bytes."""
    return Blob(hashlib.sha256(data).digest(), len(data))


@dataclass(frozen=True)
class BlobRoom:
    """Limits on the disk space of fetched blobs.

    most: bytes for all blobs of a store and the files in the folders `beside` it; None for no bound.
    spare: bytes of the disk that stay free for other work.
    """

    most: int | None = None
    spare: int = 0
    beside: tuple[Path, ...] = ()


class Blobs:
    """The blobs in one folder, which is created if needed.

    `max_bytes` bounds a single blob. `room` bounds what is fetched, and may be set later. Raises BlobError,
    here and in every method, when the disk is full or fails.
    """

    def __init__(self, folder: Path | str, max_bytes: int = MAX_BYTES, room: BlobRoom | None = None) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self.room = room or BlobRoom()
        self._partials = self.folder / "partial"
        self._live: weakref.WeakValueDictionary[Blob, Partial] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        with disk_errors("make", self._partials):
            private_folder(self.folder)
            private_folder(self._partials)

    def path(self, sha: bytes) -> Path:
        """The path of the blob, whether or not it is here."""
        return self.folder / sha.hex()

    def has(self, blob: Blob | bytes) -> bool:
        """Whether the whole blob is here; for a Blob, also whether its size on disk is right."""
        try:
            size = self.path(_sha(blob)).stat().st_size
        except OSError:
            return False
        return not isinstance(blob, Blob) or size == blob.size

    def put(self, data: bytes | memoryview) -> Blob:
        """Store these bytes. They survive a power cut once this returns."""
        blob = blob_of(data)
        self._check_size(blob)
        temporary = self._partials / f"{blob.hex}.put"
        with self._lock:
            if self.has(blob):
                return blob
            with disk_errors("write", temporary):
                try:
                    write_synced(temporary, data)
                    move_into_place(temporary, self.path(blob.sha))
                finally:
                    temporary.unlink(missing_ok=True)
        return blob

    def get(self, blob: Blob | bytes) -> bytes:
        """The bytes, verified. A damaged file is removed, so that it can be fetched again.

        Raises BlobError when it is not here or was damaged.
        """
        sha, data = _sha(blob), self.read(blob)
        if hashlib.sha256(data).digest() != sha:
            with suppress(OSError):
                self.path(sha).unlink()
            raise BlobError(
                f"blob {sha.hex()[:12]} in {self.folder} was damaged, and is removed: fetch it anew"
            )
        if isinstance(blob, Blob) and len(data) != blob.size:
            raise BlobError(
                f"blob {sha.hex()[:12]} has {len(data)} bytes, not the {blob.size} it was named with"
            )
        return data

    def read(self, blob: Blob | bytes) -> bytes:
        """The bytes without a check of the hash, of a blob that was verified just now.

        Raises BlobError when it is not here.
        """
        path = self.path(_sha(blob))
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise BlobError(f"blob {path.name[:12]} is not in {self.folder}: fetch it first") from None
        except OSError as error:
            raise blob_error("read", path, error) from error

    def read_block(self, blob: Blob, index: int) -> bytes:
        """One block without a check; the receiver checks the hash of the whole blob.

        Raises BlockError when there is no such block, BlobError when the blob is not here as a whole.
        """
        length = block_length(blob, index)
        if not self.has(blob):
            raise BlobError(f"blob {blob.hex[:12]} of {blob.size} bytes is not in {self.folder}")
        with disk_errors("read", self.path(blob.sha)), self.path(blob.sha).open("rb") as file:
            file.seek(index * BLOCK)
            data = file.read(length)
        if len(data) != length:
            raise BlobError(f"blob {blob.hex[:12]} in {self.folder} changed while it was read")
        return data

    def partial(self, blob: Blob) -> Partial:
        """The Partial of a blob that is being fetched: one object per blob while anyone holds it.

        Raises NoRoom when nothing of the blob has arrived yet and there is no `room` for it.
        """
        self._check_size(blob)
        with self._lock:
            partial = self._live.get(blob)
            if partial is None or partial.is_gone():
                if not self.has(blob) and not Partial.path_of(blob, self._partials).exists():
                    self.check_room(blob)
                partial = self._live[blob] = Partial(blob, self._partials, self.path(blob.sha))
            return partial

    def discard(self, blob: Blob) -> int:
        """Remove the blocks of a blob that is no longer fetched; a whole one stays. Returns bytes freed."""
        path = Partial.path_of(blob, self._partials)
        with self._lock, disk_errors("remove", path):
            self._live.pop(blob, None)
            return _remove(path) if path.exists() else 0

    def taken(self) -> int:
        """Bytes that the store and the folders beside it take; a blob being fetched counts in full."""
        total = 0
        with self._lock, disk_errors("read", self.folder):
            beside = (path for folder in self.room.beside for path in folder.rglob("*"))
            for path in (*self._files(), *beside):
                with suppress(FileNotFoundError):  # another process has just moved it
                    total += path.stat().st_size
        return total

    def remove(self, blob: Blob | bytes) -> None:
        """Remove a blob, if it is here."""
        with self._lock, disk_errors("remove", self.path(_sha(blob))):
            self.path(_sha(blob)).unlink(missing_ok=True)

    def prune(self, keep: Iterable[Blob | bytes], before: float = inf) -> int:
        """Remove all blobs but these and those whose Partial someone holds. Returns the bytes freed.

        Only files last written before `before` (seconds since 1970) are removed.
        """
        names = {_sha(blob).hex() for blob in keep}
        freed = 0
        with self._lock, disk_errors("prune", self.folder):
            names |= {blob.hex for blob in self._live}
            for path in self._files():
                if path.name[:64] not in names and (before == inf or path.stat().st_mtime < before):
                    freed += _remove(path)
        return freed

    def _files(self) -> list[Path]:
        """The files of whole blobs, and of blobs that are being fetched."""
        whole = (path for path in self.folder.iterdir() if _is_sha(path.name))
        return [*whole, *self._partials.iterdir()]

    def check_room(self, blob: Blob) -> None:
        """Raise NoRoom unless there is room to fetch a blob, or to unpack it in a folder beside."""
        what = f"no room for blob {blob.hex[:12]} of {blob.size} bytes"
        if self.room.most is not None and (total := self.taken()) + blob.size > self.room.most:
            raise NoRoom(f"{what}: {total} of the {self.room.most} bytes for models here are taken")
        if self.room.spare:
            with disk_errors("look at", self.folder):
                free = free_bytes(self.folder)
            if free is not None and free - blob.size < self.room.spare:
                raise NoRoom(
                    f"{what}: {free} bytes are free in {self.folder}, and {self.room.spare} are kept for "
                    "other work: free some space"
                )

    def _check_size(self, blob: Blob) -> None:
        if blob.size > self.max_bytes:
            raise BlobError(
                f"blob {blob.hex[:12]} of {blob.size} bytes: at most {self.max_bytes} are kept here"
            )


def _sha(blob: Blob | bytes) -> bytes:
    return blob.sha if isinstance(blob, Blob) else blob


def _is_sha(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    return size
