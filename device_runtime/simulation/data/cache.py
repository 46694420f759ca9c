"""What took long to decode is kept as .npy files in the user's cache folder, and mapped into memory later."""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Arrays = dict[str, NDArray[Any]]

VERSION = 1
"""Of the way things are decoded; another one makes everything anew."""


def folder() -> Path:
    """Where it is kept; anything there may be deleted at any time."""
    return Path(platformdirs.user_cache_dir("device-runtime")) / "data"


def content_key(files: Iterable[Path], *settings: object) -> str:
    """Of the files' bytes and of how they are decoded: the same for copies of them, wherever they lie."""
    digest = hashlib.sha256(repr((VERSION, *settings)).encode())
    for file in files:
        digest.update(file.stat().st_size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def listing_key(files: Iterable[Path], *settings: object) -> str:
    """Of many files' names, sizes and times of change: reading gigabytes takes as long as decoding them."""
    digest = hashlib.sha256(repr((VERSION, *settings)).encode())
    for file in files:
        about = file.stat()
        digest.update(repr((str(file.resolve()), about.st_size, about.st_mtime_ns)).encode())
    return digest.hexdigest()[:32]


def kept(key: str, make: Callable[[], Arrays]) -> Arrays:
    """What was made for this key before, memory-mapped; or else what `make` gives, kept for the next time.

    A cache that cannot be written costs a warning, no more.
    """
    home = folder() / key
    if home.is_dir():
        try:
            return _opened(home)
        except (OSError, ValueError, EOFError):
            shutil.rmtree(home, ignore_errors=True)
    made = make()
    try:
        _save(made, home)
        return _opened(home)
    except OSError as error:
        log.warning("cannot keep decoded data in %s: %s", home, error.strerror)
        return made


def _opened(home: Path) -> Arrays:
    files = sorted(home.glob("*.npy"))
    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in files}


def _save(arrays: Arrays, home: Path) -> None:
    """All or nothing: the folder appears whole, also when two processes make it at once."""
    home.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        for name, array in arrays.items():
            np.save(making / f"{name}.npy", array, allow_pickle=False)
        making.replace(home)
    except OSError:
        shutil.rmtree(making, ignore_errors=True)
        if not home.is_dir():  # otherwise another process has made it
            raise
