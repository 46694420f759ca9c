"""A file in the run folder that asks a running aggregator to roll back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.durable_files import locked_folder, replace_file

FILE = "rollback"
"""File in the run folder: the number of the round whose model is to be served."""


def request_rollback(folder: Path, to: int) -> None:
    """Requests a rollback to the model of round `to`; durable on return. The last of several requests counts.

    Raises RunFolderError.
    """
    try:
        with locked_folder(folder):
            replace_file(folder / FILE, f"{to}\n".encode("ascii"))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / FILE}: {error.strerror or error}") from None


def requested_round(folder: Path) -> int | None:
    """The round that is requested; None without a request, 0 (no model's round) for an invalid one."""
    try:
        return int((folder / FILE).read_text("ascii"))
    except OSError:
        return None
    except ValueError:
        return 0


def clear_request(folder: Path, to: int) -> None:
    """Removes the request for round `to`, which was done or is impossible; a newer request stays.

    Never waits: if another process is writing a request, the old one is removed the next time.
    """
    with suppress(OSError), locked_folder(folder, wait=False):
        if requested_round(folder) == to:
            (folder / FILE).unlink()
