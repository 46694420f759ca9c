"""Finds and reads files of data sets, caches decoded arrays, reports damaged files and progress.

Decoded arrays are kept as .npy files in the user's cache folder and memory-mapped later, because decoding
takes long.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from device_runtime.simulation.errors import DataSetError
from device_runtime.user_account import cache_folder, expanded

from .spec import DataSpec

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]

VERSION = 3
"""Version of the decoding; a new one makes the cache decode everything again."""


def folder() -> Path:
    """The cache folder; anything in it may be deleted at any time."""
    return cache_folder() / "data"


def content_key(files: Iterable[Path], *settings: object) -> str:
    """A cache key of the files' bytes and the decoding settings: the same for copies in any folder."""
    digest = hashlib.sha256(repr((VERSION, *settings)).encode())
    for file in files:
        digest.update(file.stat().st_size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def listing_key(files: Iterable[Path], *settings: object) -> str:
    """A cache key of many files' paths, sizes and times of change.

    For gigabytes of files: reading their bytes would take as long as decoding them.
    """
    digest = hashlib.sha256(repr((VERSION, *settings)).encode())
    for file in files:
        about = file.stat()
        digest.update(repr((str(file.resolve()), about.st_size, about.st_mtime_ns)).encode())
    return digest.hexdigest()[:32]


def cached(key: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays cached under this key, memory-mapped; or else those of `make`, which are then cached.

    Logs a warning if the cache cannot be written.
    """
    home = folder() / key
    if home.is_dir():
        try:
            return _opened(home)
        except (OSError, ValueError, EOFError):
            shutil.rmtree(home, ignore_errors=True)
    arrays = make()
    try:
        _save(arrays, home)
        return _opened(home)
    except OSError as error:
        log.warning("cannot keep decoded data in %s: %s", home, error.strerror)
        return arrays


def _opened(home: Path) -> Arrays:
    files = sorted(home.glob("*.npy"))
    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}


def _save(arrays: Arrays, home: Path) -> None:
    """Writes the arrays so that the folder appears whole, also when two processes make it at once."""
    home.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        for name, array in arrays.items():
            np.save(making / f"{name}.npy", array, allow_pickle=False)
        making.replace(home)
    except BaseException as error:
        shutil.rmtree(making, ignore_errors=True)
        if not (isinstance(error, OSError) and home.is_dir()):  # otherwise another process has made it
            raise


def existing(spec: DataSpec) -> Path:
    """The file or folder `spec.path`. Raises DataSetError where it is not given or does not exist."""
    if not spec.path:
        raise DataSetError(f"source {spec.source} needs a path")
    path = expanded(spec.path)
    if not path.exists():
        raise DataSetError(f"{path}: no such file or folder, for source {spec.source}")
    return path


def first(folder: Path, names: Iterable[str]) -> Path:
    """The first of the files `names` that the folder has. Raises DataSetError where it has none."""
    names = tuple(names)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataSetError(f"{folder} has no {' or '.join(names)}")


def read(path: Path) -> bytes:
    """The bytes of a file. Raises DataSetError where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataSetError(f"{path} cannot be read: {error.strerror}") from None


class SkippedFiles:
    """Counts the damaged files of a data set, which are skipped, and reports the first few by name."""

    def __init__(self, what: str) -> None:
        self._what, self._first, self.count = what, [""] * 0, 0

    def add(self, name: str, why: Exception | str) -> None:
        self.count += 1
        if len(self._first) < 3:
            self._first.append(f"{name} ({' '.join(str(why).split())})")

    def report(self, of: int) -> None:
        """Logs a warning if any of `of` files was skipped. Raises DataSetError if all were."""
        if not self.count:
            return
        named = ", ".join(self._first) + (", ..." if self.count > len(self._first) else "")
        if self.count >= of:
            raise DataSetError(f"none of {of} {self._what} can be read: {named}")
        log.warning("skipped %d of %d %s that cannot be read: %s", self.count, of, self._what, named)


T = TypeVar("T")

EVERY = 500  # items between two lines
WORTH = 2000  # items from which on progress is shown


def with_progress(items: Sequence[T], what: str) -> Iterator[T]:
    """Yields the items and shows progress on stderr: a moving line on a terminal, else one line at first."""
    total, moving = len(items), sys.stderr.isatty()
    if total >= WORTH and not moving:
        print(f"reading {total} {what}", file=sys.stderr, flush=True)
    for number, item in enumerate(items):
        if moving and total >= WORTH and number % EVERY == 0:
            print(
                f"\r{what}: {number} of {total} ({number / total:.0%})", end="", file=sys.stderr, flush=True
            )
        yield item
    if moving and total >= WORTH:
        print(f"\r{what}: {total} of {total} (100%)", file=sys.stderr, flush=True)
