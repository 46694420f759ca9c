"""The tables of a run, in SQLite or PostgreSQL, and the file that names the PostgreSQL server.

Both databases share one text of SQL; only their names of types differ. Without the file, the run is in SQLite
in its folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.broker.wire.durable_files import replace_file

VERSION = 5
"""Version of the tables and their contents."""

PLACE_FILE = "database.json"
"""File in the run folder that names server and schema; it holds no password."""

Statement = tuple[str, list[Sequence[object]]]
"""SQL with `?` for each value, and one sequence of values for each execution."""

SQLITE = """
CREATE TABLE IF NOT EXISTS meta (
    id INTEGER PRIMARY KEY CHECK (id = 1), task BLOB NOT NULL, run TEXT NOT NULL, bundle BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, phase TEXT NOT NULL, base BLOB NOT NULL, carried BLOB NOT NULL,
    next_base BLOB, next_carried BLOB, served BLOB,
    figures BLOB, record BLOB, note TEXT NOT NULL DEFAULT ''
);
CREATE TABLE IF NOT EXISTS contributions (
    round INTEGER NOT NULL, device TEXT NOT NULL, kind TEXT NOT NULL, into_round INTEGER NOT NULL,
    num_examples INTEGER NOT NULL, metrics BLOB NOT NULL, why TEXT NOT NULL, blob BLOB, body BLOB,
    form TEXT NOT NULL,
    UNIQUE (round, device)
);
CREATE INDEX IF NOT EXISTS by_round ON contributions (into_round, kind, device, round);
CREATE TABLE IF NOT EXISTS asked (
    device TEXT PRIMARY KEY, round INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS present (
    device TEXT PRIMARY KEY, boot INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS traffic (
    round INTEGER NOT NULL, device TEXT NOT NULL, up INTEGER NOT NULL, down INTEGER NOT NULL,
    PRIMARY KEY (round, device)
);
CREATE TABLE IF NOT EXISTS pace (
    round INTEGER PRIMARY KEY, durations BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS fruitless (
    round INTEGER PRIMARY KEY, deadlines INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS versions (
    round INTEGER PRIMARY KEY, published_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS rollbacks (
    into_round INTEGER PRIMARY KEY, to_round INTEGER NOT NULL, instead INTEGER NOT NULL, asked_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS round_masks (
    round INTEGER PRIMARY KEY, masks BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS masks (
    round INTEGER NOT NULL, device TEXT NOT NULL, mask BLOB NOT NULL, PRIMARY KEY (round, device)
);
CREATE TABLE IF NOT EXISTS sum_answers (
    id BLOB NOT NULL, helper TEXT NOT NULL, into_round INTEGER NOT NULL, body BLOB, blob BLOB,
    refusal TEXT NOT NULL, PRIMARY KEY (id, helper)
);
CREATE TABLE IF NOT EXISTS sums (
    into_round INTEGER NOT NULL, id BLOB NOT NULL, round INTEGER NOT NULL, kind TEXT NOT NULL,
    devices INTEGER NOT NULL, num_examples INTEGER NOT NULL, train_loss REAL, why TEXT NOT NULL,
    PRIMARY KEY (into_round, id)
);
CREATE TABLE IF NOT EXISTS sum_checks (
    into_round INTEGER PRIMARY KEY, helpers TEXT NOT NULL, done INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS mask_faults (
    into_round INTEGER NOT NULL, device TEXT NOT NULL, fault TEXT NOT NULL, sum BLOB NOT NULL,
    why TEXT NOT NULL, PRIMARY KEY (into_round, device, fault)
);
CREATE TABLE IF NOT EXISTS steps (
    round INTEGER NOT NULL, position INTEGER NOT NULL, step BLOB NOT NULL, PRIMARY KEY (round, position)
);
"""

_TYPES = {
    "INTEGER": "BIGINT",
    "BLOB": "BYTEA",
    "REAL": "DOUBLE PRECISION",
    "TEXT": 'TEXT COLLATE "C"',  # sorts as SQLite does; merging depends on that order
}
POSTGRES = re.sub("|".join(_TYPES), lambda match: _TYPES[match[0]], SQLITE)


def wrong_version(version: object) -> str:
    """The text of an error about tables of another version."""
    return (
        f"version {version}, this version reads {VERSION}: finish the run with the release that began it, "
        "or give another --run-dir"
    )


class DatabasePlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The PostgreSQL server and the schema that hold a folder's run.

    `server` is a connection string for libpq ("host=db dbname=fl user=aggregator").
    """

    server: str
    schema: str


def database_place_of(folder: Path) -> DatabasePlace | None:
    """The place of a folder's run; None where it is in the folder itself. Raises RunFolderError."""
    try:
        return msgspec.json.decode((folder / PLACE_FILE).read_bytes(), type=DatabasePlace)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"cannot read {folder / PLACE_FILE}: {error}") from None


def store_database_place(folder: Path, place: DatabasePlace) -> None:
    """Stores the place in the folder, durable on return. Raises RunFolderError."""
    try:
        replace_file(folder / PLACE_FILE, msgspec.json.encode(place) + b"\n")
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / PLACE_FILE}: {error.strerror or error}") from None
