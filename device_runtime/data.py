"""Local samples: `.npz` files with `x` (raw inputs) and `y` (class numbers), one file or a folder of them."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import TensorError
from models.manifest import Manifest
from strategies.kind import LocalData

from .errors import DataError

log = logging.getLogger(__name__)

Stamp = frozenset[tuple[str, int, int]]
"""Files by name, size in bytes, and time of the last change in ns."""


def load(path: Path | str, manifest: Manifest) -> LocalData:
    """All readable samples below `path`, prepared as the bundle wants them.

    A file that cannot be read is skipped with a warning. Raises DataError when nothing is left, when a
    label is not one of the task's, or when samples do not have the task's shape.
    """
    path = check_path(path)
    files = _files(path)
    if not files:
        raise DataError(f"no samples in {path}: it holds no .npz file with arrays x and y")
    parts, skipped = [], []
    for file in files:
        try:
            parts.append(_prepared(file, manifest))
        except _Unreadable as error:
            skipped.append(f"{file.name} {error}")
            log.warning("skipped %s: %s", file, error)
    if not parts:
        raise DataError(f"no readable samples in {path}: {'; '.join(skipped[:3])}")
    data = parts[0]
    if len(parts) > 1:  # one file is not held twice
        data = LocalData(np.concatenate([p.x for p in parts]), np.concatenate([p.y for p in parts]))
    if not len(data):
        raise DataError(f"no samples in {path}: its arrays are empty")
    return data


def raw(path: Path) -> Iterator[NDArray[Any]]:
    """x of each readable file below `path` as it is stored, before any task's preparation."""
    for file in _files(path):
        with suppress(_Unreadable):
            yield _arrays(file)[0]


def stamp(path: Path) -> Stamp:
    """Of the files below `path`, now: one that is later changed or removed is then not among them."""
    found = set()
    for file in _files(path):
        with suppress(OSError):  # it goes as we look
            status = file.stat()
            found.add((file.name, status.st_size, status.st_mtime_ns))
    return frozenset(found)


def check_path(path: Path | str) -> Path:
    """The path itself, if there is anything: known before the task is. Raises DataError."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"no data at {path}: give a folder with .npz files, or one .npz file (x, y)")
    return path


class _Unreadable(Exception):
    pass


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("*.npz"))


def _prepared(file: Path, manifest: Manifest) -> LocalData:
    raw, y = _arrays(file)
    if raw.ndim == 0 or y.shape != raw.shape[:1] or y.dtype.kind not in "iu":
        raise DataError(
            f"{file}: y is {y.dtype} {y.shape}, expected one integer for each of the {raw.shape[:1]} samples"
        )
    if raw.dtype.kind not in "buif":
        raise DataError(f"{file}: x is {raw.dtype}, expected numbers")
    labels = len(manifest.labels)
    wrong = np.unique(y[(y < 0) | (y >= labels)])
    if wrong.size:
        listed = ", ".join(str(value) for value in wrong[:5])
        raise DataError(f"{file}: label {listed} is not of the task, whose labels are 0 to {labels - 1}")
    try:
        x = manifest.input.prepare(raw)
    except TensorError as error:
        raise DataError(f"{file}: {error}") from None
    if not np.isfinite(x).all():
        raise DataError(f"{file}: {int((~np.isfinite(x)).sum())} values of x are not finite")
    return LocalData(x, y.astype(np.int64))


def _arrays(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            return archive["x"], archive["y"]
    except KeyError as error:
        raise _Unreadable(f"has no array {error}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError, AttributeError) as error:
        raise _Unreadable(f"is not a .npz file ({error})".replace("\n", " ")) from None
