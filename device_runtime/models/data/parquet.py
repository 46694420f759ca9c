"""Reads the rows of a Parquet file, by the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .delimited import CellRow
from .parquet_trial import try_parquet
from .units import Refused, TemporarilyRefused

ENDING = ".parquet"
MAGIC = b"PAR1"
ROWS = 256
"""Rows whose cells are objects at the same time."""


@contextmanager
def table_rows(path: Path) -> Iterator[Iterator[CellRow]]:
    """The names of the columns as the first row, then the rows. Raises Refused."""
    try:
        from arro3.io import read_parquet
    except ModuleNotFoundError:
        raise Refused(
            "a .parquet file needs an extra",
            f"pip install 'device-runtime[parquet]', or save {path.name} as .csv",
        ) from None
    with _refusing():
        _check_ends(path)
        try_parquet(path)
        yield _rows(read_parquet(path))


@contextmanager
def _refusing() -> Iterator[None]:
    """Turns what is raised for a damaged file into Refused; a panic of the library is no Exception."""
    try:
        yield
    except (Refused, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except OSError as error:
        raise TemporarilyRefused("cannot be read", error.strerror or error) from None
    except BaseException as error:
        raise Refused("not a .parquet file", " ".join(str(error).split())[:200]) from None


def _check_ends(path: Path) -> None:
    """Raises Refused for a file that is cut or none, before the library panics about it."""
    with path.open("rb") as file:
        begin, size = file.read(len(MAGIC)), file.seek(0, 2)
        file.seek(max(0, size - 2 * len(MAGIC)))
        end = file.read()
    footer = int.from_bytes(end[: len(MAGIC)], "little")
    if begin != MAGIC or not end.endswith(MAGIC) or footer + 3 * len(MAGIC) > size:
        raise Refused("not a .parquet file", "it is damaged, or was cut")


def _rows(batches: Any) -> Iterator[CellRow]:
    yield CellRow(1, [str(name) for name in batches.schema.names])
    number = 1
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS):
            part = batch.slice(start, min(ROWS, batch.num_rows - start))
            columns = [_cells(part.column(i)) for i in range(part.num_columns)]
            for cells in zip(*columns, strict=True):
                number += 1
                yield CellRow(number, cells)


def _cells(column: Any) -> list[Any]:
    return ["" if cell is None else cell for cell in column.to_pylist()]
