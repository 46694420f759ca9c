"""Where a folder's run is, if not in the folder: a database server, and a schema of the run's own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.partial_blob import replace_file

FILE = "database.json"
"""In the run folder; it holds no password."""


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`server` as libpq has it ("host=db dbname=fl user=aggregator"), `schema` a name in its database."""

    server: str
    schema: str


def of(folder: Path) -> Place | None:
    """Of a run that was begun; None where it is in the folder itself. Raises RunFolderError."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Place)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"cannot read {folder / FILE}: {error}") from None


def keep(folder: Path, place: Place) -> None:
    """Durable on return. Raises RunFolderError."""
    try:
        replace_file(folder / FILE, msgspec.json.encode(place) + b"\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / FILE}: {error.strerror or error}") from None
