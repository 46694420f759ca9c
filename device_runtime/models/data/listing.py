"""Lists what there is to read in a place; of the files, only tables that list files are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import database, labels, table
from .arrays import NPZ
from .database import DATABASE
from .place import DATABASES, Place
from .single import DECODERS, SINGLE
from .source import Refused, SampleFormat, Skip, SkippedTally, Unit, file_stamp
from .table import TABLE

WHOLE = {".npz": NPZ, **dict.fromkeys(table.ENDINGS, TABLE)}
"""Formats, by file ending, of files with many samples and their labels; a new format is one line here."""


@dataclass
class Listing:
    """Units to read, by name. strays: what else is there and is not read, and why."""

    units: dict[str, Unit] = field(default_factory=dict)
    strays: SkippedTally = field(default_factory=SkippedTally)

    def add(self, unit: Unit | Skip) -> None:
        """Adds a unit or a stray; of equal names the first counts, so a table's label precedes a folder's."""
        if isinstance(unit, Skip):
            self.strays.add(unit)
        else:
            self.units.setdefault(unit.name, unit)


def listing(place: Place) -> Listing:
    """All units below a place; files that vanish meanwhile are left out."""
    found = Listing()
    if place.query:
        _database(place, found)
    elif place.path.is_file():
        _file(place.path, place, found)
    else:
        _folder(place, found)
    return found


def _folder(place: Place, found: Listing) -> None:
    """Lists files before folders, since a table may list files in the folders. Skips pipes and the like."""
    try:
        entries = sorted(path for path in place.path.iterdir() if not path.name.startswith("."))
    except OSError as error:
        found.add(Skip("cannot be read", f"{place}: {error.strerror}"))
        return
    for path in entries:
        if os.path.isfile(path) and path.name != labels.FILE:  # noqa: PTH113 (Path's raises for odd links)
            _file(path, place, found)
    for path in entries:
        if os.path.isdir(path):  # noqa: PTH112
            _class_folder(path, place, found)


def _database(place: Place, found: Listing) -> None:
    try:
        found.add(Unit(place.path.name, place.path, database.stamp(place.path), DATABASE))
    except OSError as error:
        found.add(Skip("cannot be read", f"{place.path.name}: {error.strerror}"))


def _file(path: Path, place: Place, found: Listing) -> None:
    ending = path.suffix.lower()
    if ending in table.ENDINGS:
        _table(path, place, found)
    elif ending in WHOLE:
        found.add(_unit(path, place, WHOLE[ending]))
    elif ending in DECODERS:
        found.add(Skip("a file without a label: it lies in no class folder", _name(path, place)))
    elif ending in DATABASES:
        found.add(Skip("a database is read by a query: sqlite:FILE?QUERY", _name(path, place)))
    else:
        found.add(_unread(path, place))


def _table(path: Path, place: Place, found: Listing) -> None:
    try:
        form = table.layout(path, place)
        if form.file is None:
            found.add(_unit(path, place, TABLE))
            return
        for one in table.listed(path, form):
            found.add(one if isinstance(one, Skip) else _unit(one[0], place, SINGLE, one[1]))
    except Refused as error:
        found.add(Skip.of(error, _name(path, place)))


def _class_folder(folder: Path, place: Place, found: Listing) -> None:
    """Lists the files below a class folder, at any depth; those that a table lists have been added before."""
    for path in sorted(_files(folder)):
        if path.suffix.lower() in DECODERS:
            found.add(_unit(path, place, SINGLE, folder.name))
        else:
            found.add(_unread(path, place))


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and os.path.isfile(path):  # noqa: PTH113
            yield path


def _unread(path: Path, place: Place) -> Skip:
    ending = printable(path.suffix.lower()[:12]) or "no ending"
    return Skip(f"a kind of file that is not read ({ending})", _name(path, place))


def _unit(path: Path, place: Place, source: SampleFormat, label: str | None = None) -> Unit | Skip:
    name = _name(path, place)
    try:
        return Unit(name, path, file_stamp(path), source, label)
    except OSError as error:
        return Skip("cannot be read", f"{name}: {error.strerror}")


def _name(path: Path, place: Place) -> str:
    return printable(path.relative_to(place.path if place.path.is_dir() else place.path.parent).as_posix())


def printable(name: str) -> str:
    """A file's name, with characters that cannot be printed (line breaks, invalid UTF-8) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
