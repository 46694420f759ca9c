"""Records as files: JSON lines and CSV, appended as they come, and read back."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import fields
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import msgspec

from device_runtime.simulation.errors import SimulationError

R = TypeVar("R")


class Lines(AbstractContextManager["Lines[R]"], Generic[R]):
    """Writes STEM.jsonl and STEM.csv of one dataclass anew or, with `more`, at their ends.

    nan is null in JSON and empty in CSV. Tuples stand in one cell, joined by spaces. Nothing is surely on
    disk before `flush` or the end.
    """

    def __init__(self, folder: Path, stem: str, kind: type[R], more: bool = False) -> None:
        self._names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        self._json = (folder / f"{stem}.jsonl").open("ab" if more else "wb")
        self._csv = (folder / f"{stem}.csv").open("a" if more else "w", encoding="utf-8", newline="")
        self._table = csv.writer(self._csv, lineterminator="\n")
        if not more:
            self._table.writerow(self._names)
        self._encoder = msgspec.json.Encoder()

    def add(self, record: R) -> None:
        self._json.write(self._encoder.encode(record) + b"\n")
        self._table.writerow([_cell(getattr(record, name)) for name in self._names])

    def flush(self) -> None:
        """Give what was added to the operating system: a process that dies now loses none of it."""
        self._json.flush()
        self._csv.flush()

    def close(self) -> None:
        """May be called twice."""
        self._json.close()
        self._csv.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(path: Path, kind: type[R]) -> Iterator[R]:
    """The records of a .jsonl file, one at a time; null is nan where a number is expected.

    A last line that a killed run left unfinished is passed over. Raises SimulationError for any other
    damage, with file and line, and for a file that is not there.
    """
    floats = {field.name for field in fields(kind) if field.type == "float"}  # type: ignore[arg-type]
    decoder = msgspec.json.Decoder(dict[str, Any])
    number = 0
    try:
        with path.open("rb") as lines:
            for line in lines:
                number += 1
                if not line.endswith(b"\n"):
                    return
                yield _record(decoder.decode(line), kind, floats)
    except OSError as error:
        raise SimulationError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (msgspec.MsgspecError, TypeError, UnicodeDecodeError) as error:
        raise SimulationError(f"{path}, line {number}: not a line of this version ({error})") from None


def _record(values: dict[str, Any], kind: type[R], floats: set[str]) -> R:
    for name, value in values.items():
        if value is None and name in floats:
            values[name] = nan
        elif isinstance(value, list):
            values[name] = tuple(nan if item is None else item for item in value)
    return kind(**values)


def _cell(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(str(_cell(item)) for item in value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value != value else value
