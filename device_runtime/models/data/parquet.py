"""Reads the rows of a Parquet file, by the extra `parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .delimited import TableRow
from .units import Refused

ENDING = ".parquet"
ROWS = 256
"""Rows whose cells are objects at the same time."""


@contextmanager
def table_rows(path: Path) -> Iterator[Iterator[TableRow]]:
    """The names of the columns as the first row, then the rows. Raises Refused."""
    try:
        from arro3.io import read_parquet
    except ModuleNotFoundError:
        raise Refused(
            "a .parquet file needs an extra",
            f"pip install 'device-runtime[parquet]', or save {path.name} as .csv",
        ) from None
    try:
        batches = read_parquet(path)
    except Exception as error:
        raise Refused("not a .parquet file", " ".join(str(error).split())[:200]) from None
    yield _rows(batches)


def _rows(batches: Any) -> Iterator[TableRow]:
    yield TableRow(1, [str(name) for name in batches.schema.names])
    number = 1
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS):
            part = batch.slice(start, min(ROWS, batch.num_rows - start))
            columns = [_cells(part.column(i)) for i in range(part.num_columns)]
            for cells in zip(*columns, strict=True):
                number += 1
                yield TableRow(number, cells)


def _cells(column: Any) -> list[Any]:
    return ["" if cell is None else cell for cell in column.to_pylist()]
