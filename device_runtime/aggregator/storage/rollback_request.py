"""A file in the run folder that asks a running aggregator to roll back."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.partial_blob import replace_file

FILE = "rollback"
"""In the run folder: the number of the round whose model is to be gone back to."""


def ask(folder: Path, to: int) -> None:
    """Go back to the model of round `to`; durable on return. Of several who ask, the last is heeded.

    Raises RunFolderError.
    """
    try:
        with _alone(folder):
            replace_file(folder / FILE, f"{to}\n".encode("ascii"))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / FILE}: {error.strerror or error}") from None


def taken(folder: Path) -> int | None:
    """What is asked for; None for nothing, 0 for what is no number: no model is of that round."""
    try:
        return int((folder / FILE).read_text("ascii"))
    except OSError:
        return None
    except ValueError:
        return 0


def done(folder: Path, to: int) -> None:
    """It is done, or cannot be; what has been asked for since then is still to be. Never waits: while
    somebody asks, it is left for the next time.
    """
    with suppress(OSError), _alone(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
        if taken(folder) == to:
            (folder / FILE).unlink()


@contextmanager
def _alone(folder: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Nobody else changes what is asked for; whoever is killed meanwhile leaves it to the next.

    Raises OSError.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)
