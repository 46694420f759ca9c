"""Files in a run's folder: its figures and identity, a site's given rounds, a request to roll back."""

from __future__ import annotations

import csv
import io
import logging
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path

import msgspec

from device_runtime.aggregator.errors import RunFolderError, TaskError
from device_runtime.aggregator.machine.run_events import (
    ContributionRecord,
    RoundClosed,
    RoundRecord,
    RunEvent,
    Started,
)
from device_runtime.aggregator.storage.store import CarriedBlobs
from device_runtime.aggregator.tasks.task import Task, decode
from device_runtime.broker.security.audit import entries, note, this_user
from device_runtime.broker.wire.durable_files import locked_folder, names_file, private_opener, replace_file
from device_runtime.broker.wire.messages import Base, Shortages, Step

from .store import Identity, Store

log = logging.getLogger(__name__)

SHA_BYTES = 32
TASK_FILE = "task.json"
"""File in the run folder: the task, with the number of rounds that it has now."""
ADD_DATA = "add eval_data"
Record = RoundRecord | ContributionRecord


class Records:
    """An observer that writes `rounds` and `contributions`, as .jsonl and .csv, into a folder.

    The files are rewritten from the run's store when the service starts, so that a crash between a commit
    and its line loses nothing; then lines are appended. Field names are those of RoundRecord and
    ContributionRecord; nan is null in JSON and empty in CSV.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unwritten: dict[Path, bytes] = {}

    def __call__(self, event: RunEvent) -> None:
        match event:
            case Started():
                self._begin("rounds", RoundRecord)
                self._begin("contributions", ContributionRecord)
                for closed in event.closed:
                    self._add(closed)
            case RoundClosed():
                self._add(event)

    def _begin(self, stem: str, kind: type[Record]) -> None:
        header = _line([field.name for field in fields(kind)]).encode()
        for ending, content in (("jsonl", b""), ("csv", header)):
            path = self._folder / f"{stem}.{ending}"
            with names_file(path), open(path, "wb", opener=private_opener) as file:
                file.write(content)

    def _add(self, closed: RoundClosed) -> None:
        self._append("rounds", [closed.record])
        self._append("contributions", closed.contributions)

    def _append(self, stem: str, records: Sequence[Record]) -> None:
        lines = {
            "jsonl": b"".join(msgspec.json.encode(record) + b"\n" for record in records),
            "csv": "".join(
                _line([_cell(cell) for cell in asdict(record).values()]) for record in records
            ).encode(),
        }
        for ending, content in lines.items():
            path = self._folder / f"{stem}.{ending}"
            self._unwritten[path] = self._unwritten.get(path, b"") + content
        for path in list(self._unwritten):
            self._write(path)

    def _write(self, path: Path) -> None:
        """Appends what waits for a file; of what a full disk takes in part nothing stays. Raises OSError."""
        with names_file(path), path.open("ab") as file:
            size = file.tell()
            try:
                file.write(self._unwritten[path])
                file.flush()
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), size)
                raise
        del self._unwritten[path]


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return " ".join(f"{name}={item}" for name, item in value.items())
    return "" if value != value else value


def _line(cells: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()


def check_identity(store: Store, task: Task, shas: tuple[bytes, ...]) -> tuple[str, bool]:
    """Checks that a run folder belongs to this task; returns the run's name and whether it is resumed.

    A new folder becomes this task's. A run that is to have more rounds or other texts for people gets them,
    and one that was begun without evaluation data may have any; its stored task stays without. Files may lie
    in another folder than before, as after a restore elsewhere, if their names are the same. `shas`: sha256
    of the main model's bundle and of the smaller ones', in the task's order. Raises RunFolderError for the
    folder of another task, or of a run with other models.
    """
    identity = Identity(task.json(), secrets.token_hex(4), b"".join(shas))
    stored = store.identity()
    if stored is None:
        store.begin_run(identity)
        _write_task(store, identity.task)
        return identity.run, False
    begun = decode(stored.task)  # settings that are newer than the run have their defaults
    if task.statistics.hold_out is None and begun.statistics.hold_out == 0:  # its default before 0.2
        begun = msgspec.structs.replace(begun, statistics=replace(begun.statistics, hold_out=None))
    task = decode(task.json())
    added = task.eval_data if not begun.eval_data else None
    if added:
        task = msgspec.structs.replace(task, eval_data=None)
    changed = ", ".join(_differences(begun, task))
    same = begun.json() == task.json()
    begun = _relocated(begun, task)
    if begun.json() != task.json() and not _goes_on(begun, task):
        changed = ", ".join(_differences(begun, task))
        raise RunFolderError(
            f"run folder {store.folder} belongs to another task ({changed}): give another --run-dir, "
            "or the settings it was begun with; rounds can be added, but not taken away, and eval_data added "
            "to a run without; title, about and ask can be changed"
        )
    begun_with = (stored.bundles[at : at + SHA_BYTES] for at in range(0, len(identity.bundles), SHA_BYTES))
    for path, old, new in zip((task.bundle, *task.family), begun_with, shas, strict=True):
        if old != new:
            raise RunFolderError(
                f"run folder {store.folder} was begun with another bundle {path} "
                f"({old.hex()[:8]}, now {new.hex()[:8]}): give another --run-dir"
            )
    if added:
        log.info("the run was begun without eval_data: from now on its models are measured on %s", added)
        noted = (entry.subject for entry in entries([store.folder]) if entry.action == ADD_DATA)
        if next(noted, "") != added:
            note(store.folder, this_user(), ADD_DATA, added)
    if not same:
        log.info("the run goes on with other settings: %s", changed)
        note(store.folder, this_user(), "change settings", changed)
        store.change_task(task.json())
        _write_task(store, task.json())
    return stored.run, True


def _write_task(store: Store, task: bytes) -> None:
    replace_file(store.folder / TASK_FILE, task + b"\n")


def begun_without_evaluation(folder: Path) -> bool:
    """Whether a run is in the folder that was begun without evaluation data."""
    try:
        return decode((folder / TASK_FILE).read_bytes()).eval_data is None
    except (OSError, TaskError):
        return False


def _relocated(begun: Task, task: Task) -> Task:
    """The task as it was begun, with the paths of `task` for files of the same name in other folders.

    Those of runs that were begun before 0.3 may be relative.
    """

    def relocated(before: object, after: object) -> object:
        if isinstance(before, dict) and isinstance(after, dict):
            return {key: relocated(value, after.get(key)) for key, value in before.items()}
        if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            return [relocated(*pair) for pair in zip(before, after, strict=True)]
        if isinstance(before, str) and isinstance(after, str):
            old, new = Path(before), Path(after)
            return after if new.is_absolute() and old.name == new.name else before
        return before

    texts = (msgspec.json.decode(each.json()) for each in (begun, task))
    return decode(msgspec.json.encode(relocated(*texts)))


def _goes_on(begun: Task, task: Task) -> bool:
    """Whether the task has more rounds or other texts for people, and is the same otherwise.

    A run with noise gets no more rounds, because its noise is made for their number.
    """
    noise = task.masks is not None and task.masks.epsilon is not None
    same = msgspec.structs.replace(begun, rounds=task.rounds).untitled.json() == task.untitled.json()
    return same and (task.rounds == begun.rounds or (task.rounds > begun.rounds and not noise))


def _differences(old: Task, new: Task) -> list[str]:
    """Settings that differ, with both values where they are short."""
    texts = []
    for field in old.__struct_fields__:
        before, after = getattr(old, field), getattr(new, field)
        if before != after:
            texts.append(field if field == "kinds" else f"{field} {before}, now {after}")
    return texts


GIVEN_ROUND_FILE = "outside.msg"
"""File in the run folder: the round that was given last."""
SEEDS = 64
"""The number of earlier rounds whose seeds are kept: more than late contributions may be late."""
SITE_ROLLBACK_TEXT = (
    "this run is of a site: its base models come from the aggregator above, go back to another model there"
)


class GivenRound(msgspec.Struct, frozen=True, array_like=True):
    """Round `number` of this run as it was given: base, seed, and deadline in seconds.

    source: identifies the round to the code that gave it.
    steps: the zeroth-order steps from the base of the round given before to this base; empty if no steps lead
    to it.
    earlier: the seeds of rounds before it, filled in by `GivenRoundStore.keep`.
    rare, shortages: as in Offer.
    """

    number: int
    seed: int
    deadline_s: float
    base: Base
    carried: CarriedBlobs
    source: bytes
    steps: tuple[Step, ...] = ()
    earlier: dict[int, int] = {}
    rare: tuple[int, ...] = ()
    shortages: Shortages | None = None


class GivenRoundStore:
    """Stores the round that was given last, before it is offered. Raises RunFolderError."""

    def __init__(self, folder: Path) -> None:
        """Reads the round that an earlier process stored."""
        self._path = folder / GIVEN_ROUND_FILE
        self.latest = self._read()

    def keep(self, given_round: GivenRound) -> None:
        """Stores a round, durable on return; a round that is given again is replaced."""
        given_round = msgspec.structs.replace(given_round, earlier=self._seeds(given_round.number))
        try:
            replace_file(self._path, msgspec.msgpack.encode(given_round))
        except OSError as error:
            raise RunFolderError(f"cannot write {self._path}: {error.strerror or error}") from None
        self.latest = given_round

    def round(self, number: int) -> GivenRound | None:
        """Round `number`, if it is the one that was given last."""
        return self.latest if self.latest and self.latest.number == number else None

    def seed(self, number: int) -> int:
        """The seed of a round. Raises KeyError for one that was not given, or too long ago."""
        return self._seeds(number + 1)[number]

    def _seeds(self, before: int) -> dict[int, int]:
        """The seeds of the latest SEEDS rounds before this one."""
        latest = self.latest
        seeds = {**latest.earlier, latest.number: latest.seed} if latest else {}
        numbers = sorted(number for number in seeds if number < before)
        return {number: seeds[number] for number in numbers[-SEEDS:]}

    def _read(self) -> GivenRound | None:
        try:
            return msgspec.msgpack.decode(self._path.read_bytes(), type=GivenRound)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(f"cannot read {self._path}: {error}") from None


ROLLBACK_FILE = "rollback"
"""File in the run folder: the number of the round whose model is to be served."""


def request_rollback(folder: Path, to: int) -> None:
    """Requests a rollback to the model of round `to`; durable on return.

    The last of several requests counts. Raises RunFolderError.
    """
    try:
        with locked_folder(folder):
            replace_file(folder / ROLLBACK_FILE, f"{to}\n".encode("ascii"))
    except OSError as error:
        raise RunFolderError(f"cannot write {folder / ROLLBACK_FILE}: {error.strerror or error}") from None


def requested_round(folder: Path) -> int | None:
    """The round that is requested; None without a request, 0 (no model's round) for an invalid one."""
    try:
        return int((folder / ROLLBACK_FILE).read_text("ascii"))
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
            (folder / ROLLBACK_FILE).unlink()
