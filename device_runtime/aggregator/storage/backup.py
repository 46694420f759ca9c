"""Backs up a run folder while an aggregator uses it."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from device_runtime.aggregator.errors import RunFolderError, RunInUse
from device_runtime.aggregator.tasks.task import decode
from device_runtime.broker.wire.durable_database import WAIT_S, connect_to_read
from device_runtime.broker.wire.durable_files import (
    PRIVATE,
    locked_folder,
    move_into_place,
    private_folder,
    private_opener,
    sync,
)

from .database import FILE, has_run, locked_run
from .tables import database_place_of

PARTIAL = "partial"
"""The folder of what is not complete yet."""
STAGED = ".backup"
"""The folder inside the run folder where a backup is prepared."""


def back_up(folder: Path, archive: Path) -> int:
    """Writes the run of `folder` into a tar file, and returns its bytes; a file that is there is replaced.

    Commits of the aggregator wait while names of files are linked, and go on while these are written. The
    order is that of the store: content that a commit refers to is there before it, and is removed after a
    later one. Raises RunFolderError.
    """
    if not has_run(folder):
        raise RunFolderError(f"{folder} is no run folder: nothing was begun there")
    if database_place_of(folder) is not None:
        raise RunFolderError(
            f"the run of {folder} is on a database server: stop serve, copy the folder, and dump the database"
        )
    temporary = archive.with_name(f"{archive.name}.part")
    try:
        with _staged(folder) as staged:
            _stage(folder, staged)
            with open(temporary, "wb", opener=private_opener) as file:
                with tarfile.open(fileobj=file, mode="w") as tar:
                    tar.add(staged, arcname=folder.resolve().name)
                file.flush()
                sync(file.fileno())
            move_into_place(temporary, archive)
            return archive.stat().st_size
    except OSError as error:
        raise RunFolderError(f"cannot back up {folder} to {archive}: {error.strerror or error}") from None
    except sqlite3.Error as error:
        raise RunFolderError(f"cannot back up {folder}: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _staged(folder: Path) -> Iterator[Path]:
    """An empty folder on the run's disk, for one backup at a time. Removes what a killed backup left."""
    place = folder / STAGED
    private_folder(place)
    try:
        with locked_folder(place, wait=False):
            _empty(place)
            try:
                yield place
            finally:
                _empty(place)
    except BlockingIOError:
        raise RunFolderError(f"another backup of {folder} goes on") from None


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _stage(folder: Path, staged: Path) -> None:
    """Links and copies the files of the run into `staged`, which is below `folder`."""
    with closing(connect_to_read(folder / FILE)) as source:
        with _no_commits(folder):
            source.execute("BEGIN")
            source.execute(
                "SELECT count(*) FROM sqlite_master"
            ).fetchone()  # from here on it reads this state
            for path in _files(folder):
                copy = staged / path.relative_to(folder)
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # content that no commit refers to any more
                    _link(path, copy, folder)
        os.close(os.open(staged / FILE, os.O_CREAT | os.O_WRONLY, PRIVATE))
        with closing(sqlite3.connect(staged / FILE)) as target:
            source.backup(target)
            _rename_run(target)
            target.commit()


def _rename_run(copy: sqlite3.Connection) -> None:
    """Give a copy's run a name of its own.

    Devices refuse an earlier round of a run than one that they were offered, so that after a restore those
    that were further would sit out until the run has caught up. Masks are made for the name: it stays with
    them.
    """
    (task,) = copy.execute("SELECT task FROM meta").fetchone()
    if decode(task).masks is None:
        copy.execute("UPDATE meta SET run = ?", (secrets.token_hex(4),))


@contextmanager
def _no_commits(folder: Path) -> Iterator[None]:
    """Lets commits of the run wait."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None, timeout=WAIT_S)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            holder.execute("ROLLBACK")


def _files(folder: Path) -> Iterator[Path]:
    """The files of a run, without the database, the lock and incomplete blobs."""
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder).parts
        aside = inner[0].startswith(FILE) or inner[0] in (STAGED, "lock") or PARTIAL in inner[:-1]
        if not aside and path.is_file() and not path.is_symlink():
            yield path


def _link(path: Path, copy: Path, folder: Path) -> None:
    """Links content, which never changes, and copies other files, to which lines are added."""
    if path.parent == folder:
        _copy(path, copy)
        return
    try:
        os.link(path, copy)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links: copies take longer than commits wait
        try:
            handle = locked_run(folder)
        except RunInUse:
            text = "has no hard links, and an aggregator runs there: stop it for the backup"
            raise RunFolderError(f"the file system of {folder} {text}") from None
        try:
            _copy(path, copy)
        finally:
            os.close(handle)


def _copy(path: Path, copy: Path) -> None:
    with path.open("rb") as source, open(copy, "wb", opener=private_opener) as target:
        shutil.copyfileobj(source, target)
