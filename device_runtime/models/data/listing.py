"""Lists what there is to read in a source; of the files, only tables that list files are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from . import database, labels, table
from .arrays import NPZ
from .database import DATABASE
from .sample_source import DATABASES, SampleSource
from .single import DECODERS, SINGLE, not_read
from .table import TABLE
from .units import Refused, SampleFormat, Skip, SkippedTally, Unit, file_stamp, refusing

WHOLE = {".npz": NPZ, **dict.fromkeys(table.ENDINGS, TABLE)}
"""Formats, by file ending, of files with many samples and their labels; a new format is one line here."""
LOST_LINK = "a link that leads nowhere"
SYSTEM_FILES = frozenset(
    {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx", "@eadir", "$recycle.bin", "lost+found"}
)
"""Files and folders that systems leave beside people's pictures, in lower case."""


@dataclass
class Listing:
    """Units to read, by name. strays: files that are not read, and why."""

    units: dict[str, Unit] = field(default_factory=dict)
    strays: SkippedTally = field(default_factory=SkippedTally)

    def add(self, unit: Unit | Skip) -> None:
        """Adds a unit or a stray; of equal names the first counts, so a table's label precedes a folder's."""
        if isinstance(unit, Skip):
            self.strays.add(unit)
        else:
            self.units.setdefault(unit.name, unit)


def listing(source: SampleSource) -> Listing:
    """All units of a source; files that vanish meanwhile are ignored."""
    contents = Listing()
    if source.query:
        try:
            contents.add(Unit(source.path.name, source.path, database.stamp(source.path), DATABASE))
        except OSError as error:
            contents.add(Skip("cannot be read", f"{source.path.name}: {error.strerror}"))
    elif source.path.is_file():
        _file(source.path, source, contents)
    else:
        _folder(source, contents)
    return contents


def _folder(source: SampleSource, contents: Listing) -> None:
    """Lists tables first, and files before folders, as a table may list others. Skips pipes and the like."""
    try:
        entries = sorted(path for path in source.path.iterdir() if not is_hidden(path.name))
    except OSError as error:
        contents.add(Skip("cannot be read", f"{source}: {error.strerror}"))
        return
    files = [path for path in entries if os.path.isfile(path)]  # noqa: PTH113 (Path's raises for odd links)
    for path in sorted(files, key=lambda path: path.suffix.lower() not in table.ENDINGS):
        if path.name != labels.FILE and _name(path, source) not in contents.units:
            _file(path, source, contents)
    for path in entries:
        if os.path.isdir(path):  # noqa: PTH112
            _class_folder(path, source, contents)
        elif path.is_symlink() and not os.path.exists(path):  # noqa: PTH110
            contents.add(Skip(LOST_LINK, _name(path, source)))


def is_hidden(name: str) -> bool:
    """Whether a file or folder is none of its owner's: hidden, or of the system."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES


def _file(path: Path, source: SampleSource, contents: Listing) -> None:
    ending = path.suffix.lower()
    if ending in table.ENDINGS:
        _table(path, source, contents)
    elif ending in WHOLE:
        contents.add(_unit(path, source, WHOLE[ending]))
    elif ending in DECODERS and source.unlabelled:
        contents.add(_unit(path, source, SINGLE))
    elif ending in DECODERS:
        contents.add(Skip("a file without a label: it is in no class folder", _name(path, source)))
    elif ending in DATABASES:
        contents.add(Skip("a database is read by a query: sqlite:FILE?QUERY", _name(path, source)))
    else:
        contents.add(_unread(path, source))


def _table(path: Path, source: SampleSource, contents: Listing) -> None:
    try:
        with refusing():
            form = table.layout(path, source)
            if form.file is None:
                contents.add(_unit(path, source, TABLE))
                return
            for row in table.listed(path, form):
                unit = row if isinstance(row, Skip) else _unit(row.path, source, SINGLE, row.label)
                if isinstance(unit, Unit) and not isinstance(row, Skip):
                    unit = replace(unit, client=row.client)
                contents.add(unit)
    except Refused as error:
        contents.add(Skip.of(error, _name(path, source)))


def _class_folder(folder: Path, source: SampleSource, contents: Listing) -> None:
    """Lists the files below a class folder, at any depth; those that a table lists have been added before."""
    for path in sorted(_files(folder, source, contents)):
        if path.suffix.lower() in DECODERS:
            contents.add(_unit(path, source, SINGLE, folder.name))
        elif path.suffix.lower() in table.ENDINGS:
            contents.add(_unit(path, source, TABLE, folder.name))
        else:
            contents.add(_unread(path, source))


def _files(folder: Path, source: SampleSource, contents: Listing) -> Iterator[Path]:
    """Files that are not hidden, at any depth, behind links too; adds what cannot be read as strays."""

    def unreadable(error: OSError) -> None:
        contents.add(Skip("cannot be read", f"{_name(Path(error.filename), source)}/: {error.strerror}"))

    place = Path(os.path.realpath(folder))
    listed = {os.path.realpath(source.path), str(place), *map(str, place.parents)}
    for at, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        folders[:] = [
            name for name in sorted(folders) if not is_hidden(name) and _is_new(Path(at, name), listed)
        ]
        for name in names:
            path = Path(at, name)
            if is_hidden(name):
                continue
            if os.path.isfile(path):  # noqa: PTH113
                yield path
            elif path.is_symlink() and not os.path.exists(path):  # noqa: PTH110
                contents.add(Skip(LOST_LINK, _name(path, source)))


def _is_new(folder: Path, listed: set[str]) -> bool:
    """Whether a folder was not listed before: a link may lead back to a folder that it lies in."""
    place = os.path.realpath(folder)
    new = place not in listed
    listed.add(place)
    return new


def _unread(path: Path, source: SampleSource) -> Skip:
    return Skip(not_read(printable(path.suffix.lower()[:12])), _name(path, source))


def _unit(
    path: Path, source: SampleSource, sample_format: SampleFormat, label: str | None = None
) -> Unit | Skip:
    name = _name(path, source)
    try:
        return Unit(name, path, file_stamp(path), sample_format, label)
    except OSError as error:
        return Skip("cannot be read", f"{name}: {error.strerror}")


def _name(path: Path, source: SampleSource) -> str:
    return printable(path.relative_to(source.path if source.path.is_dir() else source.path.parent).as_posix())


def printable(name: str) -> str:
    """A file's name, with characters that cannot be printed (line breaks, invalid UTF-8) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
