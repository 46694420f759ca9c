"""Content-addressed files: a blob is found by its sha256, and what is found is what was put.

One process owns a folder. In it lie `{sha}` for each whole blob and, in `partial/`, what is on its way: the
bytes received so far, preallocated, and a map with one byte per block, 1 where the block has arrived. Blocks
are not synced one by one: after a power cut the map may be ahead of the data, and then the hash tells.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import BlobError, BlockError
from .messages import Blob

BLOCK = 64 * 1024
"""Bytes of every block but the last."""
MAX_BYTES = 4 * 1024**3
"""Bytes. A larger blob is refused unless the store was told otherwise."""


def block_count(blob: Blob) -> int:
    return -(-blob.size // BLOCK)


def block_length(blob: Blob, index: int) -> int:
    """Bytes of one block. Raises BlockError when the blob has no such block."""
    if not 0 <= index < block_count(blob):
        raise BlockError(f"blob {blob.hex[:12]} has {block_count(blob)} blocks, no block {index}")
    return min(BLOCK, blob.size - index * BLOCK)


def name(data: bytes) -> Blob:
    """The blob that these bytes are."""
    return Blob(hashlib.sha256(data).digest(), len(data))


class Blobs:
    """The blobs in one folder, which is made if need be. `max_bytes` bounds a single blob.

    Raises BlobError, here and in every method, when the disk does not do as it is told.
    """

    def __init__(self, folder: Path | str, max_bytes: int = MAX_BYTES) -> None:
        self.folder = Path(folder)
        self.max_bytes = max_bytes
        self._partials = self.folder / "partial"
        self._live: weakref.WeakValueDictionary[Blob, Partial] = weakref.WeakValueDictionary()
        self._lock = threading.RLock()
        with _disk("make", self._partials):
            self._partials.mkdir(parents=True, exist_ok=True)

    def path(self, sha: bytes) -> Path:
        """Where the blob lies, or would lie."""
        return self.folder / sha.hex()

    def has(self, blob: Blob | bytes) -> bool:
        """Whether it is here as a whole; for a Blob, also whether its size is the one on disk."""
        try:
            size = self.path(_sha(blob)).stat().st_size
        except OSError:
            return False
        return not isinstance(blob, Blob) or size == blob.size

    def put(self, data: bytes) -> Blob:
        """Keep these bytes. When it returns they are on the disk, also after a power cut."""
        blob = name(data)
        self._check_size(blob)
        temporary = self._partials / f"{blob.hex}.put"
        with self._lock:
            if self.has(blob):
                return blob
            with _disk("write", temporary):
                try:
                    with temporary.open("wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    self._admit(temporary, blob.sha)
                finally:
                    temporary.unlink(missing_ok=True)
        return blob

    def get(self, blob: Blob | bytes) -> bytes:
        """The bytes, verified. A damaged file is removed, so that it can be fetched again.

        Raises BlobError when it is not here or was damaged.
        """
        sha = _sha(blob)
        path = self.path(sha)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise BlobError(f"blob {sha.hex()[:12]} is not in {self.folder}: fetch it first") from None
        except OSError as error:
            raise _blob_error("read", path, error) from error
        if hashlib.sha256(data).digest() != sha:
            with suppress(OSError):
                path.unlink()
            raise BlobError(
                f"blob {sha.hex()[:12]} in {self.folder} was damaged, and is removed: fetch it anew"
            )
        if isinstance(blob, Blob) and len(data) != blob.size:
            raise BlobError(
                f"blob {sha.hex()[:12]} has {len(data)} bytes, not the {blob.size} it was named with"
            )
        return data

    def read_block(self, blob: Blob, index: int) -> bytes:
        """One block as it lies on disk; whoever puts them together checks the hash.

        Raises BlockError when there is no such block, BlobError when the blob is not here as a whole.
        """
        length = block_length(blob, index)
        if not self.has(blob):
            raise BlobError(f"blob {blob.hex[:12]} of {blob.size} bytes is not in {self.folder}")
        with _disk("read", self.path(blob.sha)), self.path(blob.sha).open("rb") as file:
            file.seek(index * BLOCK)
            data = file.read(length)
        if len(data) != length:
            raise BlobError(f"blob {blob.hex[:12]} in {self.folder} changed while it was read")
        return data

    def partial(self, blob: Blob) -> Partial:
        """What has arrived of a blob so far; the same object for the same blob while anyone holds it."""
        self._check_size(blob)
        with self._lock:
            partial = self._live.get(blob)
            if partial is None:
                partial = self._live[blob] = Partial(self, blob)
            return partial

    def prune(self, keep: Iterable[Blob | bytes]) -> int:
        """Remove all but these, and those whose Partial someone holds. Returns the bytes freed."""
        kept = {_sha(blob).hex() for blob in keep}
        freed = 0
        with self._lock, _disk("prune", self.folder):
            kept |= {blob.hex for blob in self._live}
            for path in list(self.folder.iterdir()):
                if _is_sha(path.name) and path.name not in kept:
                    freed += _remove(path)
            for path in list(self._partials.iterdir()):
                if path.name[:64] not in kept:
                    freed += _remove(path)
        return freed

    def _check_size(self, blob: Blob) -> None:
        if blob.size > self.max_bytes:
            raise BlobError(
                f"blob {blob.hex[:12]} of {blob.size} bytes: at most {self.max_bytes} are kept here"
            )

    def _admit(self, temporary: Path, sha: bytes) -> None:
        """Let a whole, synced file take its place, durably. Lets OSError through."""
        temporary.replace(self.path(sha))
        sync_folder(self.folder)


class Partial:
    """A blob on its way. `add` in any order, any number of times; `finish` when nothing is `missing`.

    It survives the process: a new object on the same folder goes on where the last one was.
    """

    def __init__(self, blobs: Blobs, blob: Blob) -> None:
        self.blob = blob
        self._blobs = blobs
        stem = blobs.folder / "partial" / f"{blob.hex}-{blob.size}"
        self._data, self._map = stem.with_suffix(".data"), stem.with_suffix(".map")
        self._lock = threading.Lock()
        self._missing = set() if blobs.has(blob) else self._open()

    def _open(self) -> set[int]:
        count = block_count(self.blob)
        with _disk("make room for", self._data):
            if self._data.exists() and self._map.exists() and self._data.stat().st_size == self.blob.size:
                seen = self._map.read_bytes()
                if len(seen) == count:
                    return {index for index in range(count) if seen[index] != 1}
            self._map.unlink(missing_ok=True)
            try:
                _reserve(self._data, self.blob.size)
            except OSError:
                self._data.unlink(missing_ok=True)
                raise
            self._map.write_bytes(bytes(count))
        return set(range(count))

    def missing(self) -> tuple[int, ...]:
        """Block numbers that have not arrived, in order."""
        with self._lock:
            return tuple(sorted(self._missing))

    def add(self, index: int, data: bytes) -> bool:
        """Keep one block. Returns whether it was new; one that is already here is left as it is.

        Raises BlockError on a wrong length or number, BlobError when the disk is full.
        """
        length = block_length(self.blob, index)
        if len(data) != length:
            raise BlockError(
                f"block {index} of blob {self.blob.hex[:12]} has {length} bytes, not {len(data)}"
            )
        with self._lock, _disk("write", self._data):
            if index not in self._missing:
                return False
            _write_at(self._data, index * BLOCK, data)
            _write_at(self._map, index, b"\x01")
            self._missing.discard(index)
            return True

    def finish(self) -> Path:
        """Verify the whole and let it into the store, durably. Returns where it lies.

        Raises BlobError when blocks are missing, and when the hash is wrong: then all of it is discarded,
        and this object begins again with every block missing.
        """
        with self._lock, _disk("finish", self._data):
            if self._missing:
                raise BlobError(f"blob {self.blob.hex[:12]} still lacks {len(self._missing)} blocks")
            if not self._blobs.has(self.blob):
                self._verify()
                self._blobs._admit(self._data, self.blob.sha)
            self._map.unlink(missing_ok=True)
            self._data.unlink(missing_ok=True)
            return self._blobs.path(self.blob.sha)

    def _verify(self) -> None:
        digest = hashlib.sha256()
        with self._data.open("r+b") as file:
            for data in iter(lambda: file.read(BLOCK), b""):
                digest.update(data)
            os.fsync(file.fileno())
        if digest.digest() != self.blob.sha:
            self._data.unlink()
            self._missing = self._open()
            raise BlobError(
                f"what came as blob {self.blob.hex[:12]} has another hash: discarded, fetch it anew"
            )


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable. Lets OSError through."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha(blob: Blob | bytes) -> bytes:
    return blob.sha if isinstance(blob, Blob) else blob


def _is_sha(text: str) -> bool:
    return len(text) == 64 and all(letter in "0123456789abcdef" for letter in text)


def _remove(path: Path) -> int:
    size = path.stat().st_size
    path.unlink()
    return size


def _reserve(path: Path, size: int) -> None:
    """Take the room now, where the platform can, so that a full disk shows before anything is fetched."""
    with path.open("wb") as file:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(size)


def _write_at(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _blob_error(verb: str, path: Path, error: OSError) -> BlobError:
    advice = ": free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return BlobError(f"cannot {verb} {path}: {(error.strerror or str(error)).lower()}{advice}")


@contextmanager
def _disk(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _blob_error(verb, path, error) from error
