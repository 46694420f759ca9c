"""Files of data sets: that they are there, that they are whole, that some may be damaged."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from device_runtime.simulation.errors import DataSetError

from .spec import DataSpec

log = logging.getLogger(__name__)


def existing(spec: DataSpec) -> Path:
    """`spec.path`. Raises DataSetError where it is not given or not there."""
    if not spec.path:
        raise DataSetError(f"source {spec.source} needs a path")
    path = Path(spec.path).expanduser()
    if not path.exists():
        raise DataSetError(f"{path}: no such file or folder, for source {spec.source}")
    return path


def first(folder: Path, wanted: Iterable[str]) -> Path:
    """The first of the files `wanted` that is in the folder. Raises DataSetError where none is."""
    wanted = tuple(wanted)
    for name in wanted:
        if (folder / name).is_file():
            return folder / name
    raise DataSetError(f"{folder} has no {' or '.join(wanted)}")


def read(path: Path) -> bytes:
    """Raises DataSetError where that is not possible."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataSetError(f"{path} cannot be read: {error.strerror}") from None


class Skipped:
    """Counts damaged files, which are left out; names the first few."""

    def __init__(self, what: str) -> None:
        self._what, self._first, self.count = what, [""] * 0, 0

    def add(self, name: str, why: Exception | str) -> None:
        self.count += 1
        if len(self._first) < 3:
            self._first.append(f"{name} ({' '.join(str(why).split())})")

    def report(self, of: int) -> None:
        """One warning, where something was left out. Raises DataSetError where nothing is left."""
        if not self.count:
            return
        named = ", ".join(self._first) + (", ..." if self.count > len(self._first) else "")
        if self.count >= of:
            raise DataSetError(f"none of {of} {self._what} can be read: {named}")
        log.warning("left out %d of %d %s that cannot be read: %s", self.count, of, self._what, named)
