"""Reads the rows of a delimited text file, whose encoding and separator it finds, or of a Parquet file.

Parquet is read by arro3 (the extra `parquet`), in a process of its own first. arro3 is written in Rust. What
it does not expect in a file is a panic, and some panics end the process, whatever Python catches.
"""

from __future__ import annotations

import codecs
import csv
import io
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from device_runtime.service_process import python_command

from .units import Refused, TemporarilyRefused

TABS = (".tsv", ".tab")
SEPARATORS = ",;\t|"
LOOKED_AT = 1 << 16
"""Bytes from which the encoding and the separator are found."""
SNIFFED_LINES = 50
LONGEST_LINE = 1 << 24
"""Most characters of a line, so that a file without line ends is not read into memory as one."""
BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
NO_TEXT = "not a table of UTF-8 text"
NUMBER = re.compile(r"\s*[+-]?(\d+([.,]\d*)*|[.,]\d+)([eE][+-]?\d+)?\s*")
"""Cells that look like numbers, with a point or a comma."""


class CellRow(NamedTuple):
    """A row by its number in the file, from 1, and its cells."""

    number: int
    cells: Sequence[str]


@dataclass(frozen=True)
class Dialect:
    """How a file is written. quoted: whether a quote around a cell may hide separators and line ends."""

    encoding: str
    separator: str
    quoted: bool = True


def dialect(path: Path) -> Dialect:
    """Finds the encoding and the separator from the beginning of the file. Raises Refused."""
    try:
        with path.open("rb") as file:
            beginning = file.read(LOOKED_AT)
    except OSError as error:
        raise TemporarilyRefused("cannot be read", error.strerror) from None
    encoding = _encoding(beginning)
    whole = len(beginning) < LOOKED_AT
    text = beginning.decode(encoding, "replace")
    lines = io.StringIO(text, newline="").readlines()
    lines = lines if whole or len(lines) < 2 else lines[:-1]
    first = next((line for line in lines if line.strip()), "")
    if declaration := re.fullmatch(r"sep=([,;\t|])\s*", first):
        return Dialect(encoding, declaration[1])
    if path.suffix.lower() in TABS and "\t" in first:
        return Dialect(encoding, "\t", quoted=False)
    return Dialect(encoding, _separator(lines[:SNIFFED_LINES]))


def count_lines(path: Path) -> int:
    """The most rows that the file may have, by its line ends; 0 if it cannot be read."""
    lines = 1
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                lines += block.count(b"\n") or block.count(b"\r")
    except OSError:
        return 0
    return lines


def _encoding(beginning: bytes) -> str:
    """UTF-8, or UTF-16 if a mark or the zero bytes say so."""
    for mark, encoding in BOMS:
        if beginning.startswith(mark):
            return encoding
    for encoding, zero in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros, others = beginning[zero::2].count(0), beginning[1 - zero :: 2].count(0)
        if zeros > len(beginning) / 4 and not others:
            return encoding
    return "utf-8"


def _separator(lines: Sequence[str]) -> str:
    """The separator that cuts most lines into equally many cells, and most cells into numbers."""

    def fitness(separator: str) -> tuple[bool, float, float, float, int]:
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator) if any(map(str.strip, row))]
        except csv.Error:
            rows = []
        if not rows:
            return False, 0.0, 0.0, 0.0, 0
        width, count = Counter(map(len, rows)).most_common(1)[0]
        cells = [cell for row in rows if len(row) == width for cell in row]
        numbers = sum(bool(NUMBER.fullmatch(cell)) for cell in cells) / len(cells)
        spaced = sum(cell[:1] == " " for cell in cells) / len(cells)
        return width > 1, round(count / len(rows), 1), numbers, -spaced, width

    return max(SEPARATORS, key=fitness)


@contextmanager
def table_rows(path: Path, form: Dialect) -> Iterator[Iterator[CellRow]]:
    """The rows that are not blank, without comments above the first. Raises Refused.

    In a file of tabs a quote is an ordinary character, since no cell has tabs or line ends; only a cell that
    is quoted as a whole loses its quotes.
    """
    try:
        with path.open(encoding=form.encoding, newline="") as file:
            quotes = _Quotes()
            rows: Iterator[list[str]]
            if form.quoted:
                rows = csv.reader(_lines(file, quotes), delimiter=form.separator)
            else:
                plain = csv.reader(_lines(file, quotes), delimiter=form.separator, quoting=csv.QUOTE_NONE)
                rows = ([_unquoted(cell) for cell in row] for row in plain)
            yield _without_comments(_numbered(rows, quotes if form.quoted else None))
    except OSError as error:
        raise TemporarilyRefused("cannot be read", error.strerror) from None
    except UnicodeDecodeError as error:
        raise Refused(NO_TEXT, _mended(error, path)) from None
    except csv.Error as error:
        if "limit" not in str(error):
            raise Refused(NO_TEXT, error) from None
        most = f"{csv.field_size_limit():,} characters are the most"
        raise Refused("a cell that is too long, or a quote that is not closed", most) from None


def _mended(error: UnicodeDecodeError, path: Path) -> str:
    """How to convert a file of another encoding."""
    if error.encoding.startswith("utf-16") or b"\0" in error.object:
        return f"{error.reason}: save it as UTF-8"
    byte = error.object[error.start]
    return (
        f"it has the byte 0x{byte:02x}; if it is of Windows (cp1252) or Latin-1, write it anew: "
        f"iconv -f CP1252 -t UTF-8 {path.name} > utf8-{path.name}"
    )


class _Quotes:
    """Counts quotes, to tell where one is not closed."""

    count = 0


def _lines(file: TextIO, quotes: _Quotes) -> Iterator[str]:
    """The lines of a file. Raises Refused for one that is too long."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise Refused("a line that is too long", f"{LONGEST_LINE} characters are the most")
        if '"' in line:
            quotes.count += line.count('"')
        yield line


def _numbered(rows: Iterator[list[str]], quotes: _Quotes | None) -> Iterator[CellRow]:
    """The rows that are not blank. Raises Refused if the last one takes in the rest, for want of a quote."""
    row: list[str] = []
    number = 0
    for number, row in enumerate(rows, 1):
        if row and any(row) and any(map(str.strip, row)):
            yield CellRow(number, row)
    if quotes is not None and quotes.count % 2 and row and "\n" in row[-1]:
        raise Refused("a quote that is not closed", f"in row {number}")


def _without_comments(rows: Iterator[CellRow]) -> Iterator[CellRow]:
    """Skips lines above the table that begin with #; the last is the header if it has as many cells."""
    above: list[CellRow] = []
    for row in rows:
        first = row.cells[0].lstrip()
        if row.number == 1 and re.fullmatch(r"sep=.?", first):  # a line for spreadsheets, see `dialect`
            continue
        if first.startswith("#") and first != "#" and len(above) < SNIFFED_LINES:
            above.append(row)
            continue
        header = above[-1:] if above and len(above[-1].cells) == len(row.cells) > 1 else []
        named = [CellRow(comment.number, _uncommented(comment.cells)) for comment in header]
        yield from chain(named, [row], rows)
        return
    yield from islice(above, len(above) if above and len(above[0].cells) > 1 else 0)


def _uncommented(cells: Sequence[str]) -> list[str]:
    """A header without the mark of a comment."""
    return [cells[0].strip().lstrip("#").strip(), *cells[1:]]


def _unquoted(cell: str) -> str:
    quoted = len(cell) > 1 and cell[0] == cell[-1] == '"'
    return cell[1:-1].replace('""', '"') if quoted else cell


TRIAL = """
import sys
from arro3.io import read_parquet
try:
    for batch in read_parquet(sys.argv[1]):
        pass
except BaseException as error:
    print(" ".join(str(error).split())[:200])
    sys.exit(3)
"""
LEAST_S, BYTES_A_S = 60.0, 1e6
"""The trial may take so long, and a second more for so many bytes."""
TRIALS_KEPT = 64
"""Files whose trial is remembered, by size and time of change."""


def try_parquet(path: Path) -> None:
    """Raises Refused for a file that cannot be read to its end, OSError if there is none."""
    about = path.stat()
    if why := _trial(os.fspath(path.absolute()), about.st_size, about.st_mtime_ns):
        raise Refused("not a .parquet file", why)


@lru_cache(TRIALS_KEPT)
def _trial(path: str, size: int, changed_ns: int) -> str:
    """Why the file cannot be read; empty if it can."""
    try:
        ended = subprocess.run(
            python_command(TRIAL, path),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=LEAST_S + size / BYTES_A_S,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return f"reading it takes more than {LEAST_S + size / BYTES_A_S:.0f} s"
    if not ended.returncode:
        return ""
    return ended.stdout.strip() or "it is damaged: the library that reads it ends its process"


ENDING = ".parquet"
MAGIC = b"PAR1"
ROWS = 256
"""Rows whose cells are objects at the same time."""


@contextmanager
def parquet_rows(path: Path) -> Iterator[Iterator[CellRow]]:
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
        yield _rows_of_batches(read_parquet(path))


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


def _rows_of_batches(batches: Any) -> Iterator[CellRow]:
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
