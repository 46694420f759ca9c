"""What is asked of a running aggregator through its run folder: a file, which is there until it is done."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from broker.partial import replace_file

from .errors import RunFolderError

FILE = "rollback"
"""In the run folder: the number of the round whose model is to be gone back to."""


def ask(folder: Path, to: int) -> None:
    """Go back to the model of round `to`; durable on return. Raises RunFolderError."""
    try:
        replace_file(folder / FILE, f"{to}\n".encode("ascii"))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / FILE}: {error.strerror or error}") from None


def taken(folder: Path) -> int | None:
    """What is asked for; None for nothing. A file that is no number is removed."""
    try:
        return int((folder / FILE).read_text("ascii"))
    except OSError:
        return None
    except ValueError:
        _remove(folder)
        return None


def done(folder: Path, to: int) -> None:
    """It is done, or cannot be; what has been asked for since then is still to be."""
    if taken(folder) == to:
        _remove(folder)


def _remove(folder: Path) -> None:
    with suppress(OSError):
        (folder / FILE).unlink()
