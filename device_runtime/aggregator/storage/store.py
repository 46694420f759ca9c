"""Stores a run in one folder: a database for small data, and blobs for large ones.

    run.sqlite   task, rounds, devices asked, contributions, traffic, the log of zeroth-order steps;
                 or database.json, which names the PostgreSQL server that holds them
    models/      bundle, checkpoints, logs, served models; devices may fetch them
    updates/     contributions over INLINE_LIMIT, until their round is merged; no device may fetch them

The order is always the same: content is made durable, then one commit of the database refers to it, then
others are told. Every write may be repeated, and is repeated where a server was lost. One process owns the
run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TypeVar

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.intake.contributions import Contributions
from device_runtime.aggregator.rounds.state import Saved
from device_runtime.aggregator.views.listener import RoundClosed, RoundRecord
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Base, Blob, Step
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.models.bundles.tensors import Tensors

from .database import Database
from .history import ServingHistory, StepHistory

T = TypeVar("T")

LEFT_S = 600.0
"""When a run is opened, content that no contribution refers to is removed if it is older than this."""

_ATTEND = "INSERT INTO present VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET boot = excluded.boot"
_ASK = "INSERT INTO asked VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET round = excluded.round"
_FRUITLESS = """INSERT INTO fruitless VALUES (?, ?)
ON CONFLICT (round) DO UPDATE SET deadlines = excluded.deadlines"""
_OPEN = """INSERT INTO rounds (round, phase, base, carried) VALUES (?, 'collect', ?, ?)
ON CONFLICT DO NOTHING"""
_FORGET_TAKEN = """DELETE FROM steps
WHERE round >= (SELECT coalesce(max(round), 0) FROM rounds WHERE round < ?)"""


@dataclass(frozen=True)
class Identity:
    """The task, run and models that a run folder belongs to.

    `task` is canonical JSON. `bundles` is the sha256 of the main model's canonical zip, followed by those of
    the smaller models.
    """

    task: bytes
    run: str
    bundles: bytes


@dataclass(frozen=True)
class ModelEvaluation:
    """Accuracy and loss of a round's served model, and accuracy of its next base; nan without data.

    metric: the name of the metric that eval_acc and base_eval_acc are. metrics: further ones, by name.
    """

    eval_acc: float
    eval_loss: float
    base_eval_acc: float
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)


class CarriedBlobs(msgspec.Struct, frozen=True, array_like=True):
    """The `CarriedState` of a merge as it is stored: bases by member, blobs by kind."""

    family: dict[str, Base] = {}
    memory: dict[str, Blob] = {}
    aside: Blob | None = None

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All blobs that it refers to."""
        parts = (part for base in self.family.values() for part in base.checkpoint)
        return (*parts, *self.memory.values(), *((self.aside,) if self.aside else ()))


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge: the next base and what goes with it, the served model, and the steps taken.

    `note` says what was unusual; empty for nothing.
    """

    base: Base
    served: Blob
    carried: CarriedBlobs
    steps: tuple[Step, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Latest:
    """A base and its weights."""

    base: Base
    weights: Tensors


class Store:
    """An open run folder. Every method raises as `Database` when disk or server fail."""

    def __init__(self, folder: Path, reading: bool = False, database: str = "") -> None:
        """Opens the folder, and makes it if it is missing.

        reading: only reads an existing folder; another process may own it.
        database: URL of the PostgreSQL server for a run that is not to be in SQLite.
        Raises as Database.
        """
        self.folder = folder
        self._db = Database(folder, reading, database)
        self.models, self.updates = Blobs(folder / "models"), Blobs(folder / "updates")
        self.contributions = Contributions(self._db, self.updates)
        self.history, self.taken = ServingHistory(self._db), StepHistory(self._db)
        self.latest: Latest | None = None
        if not reading:
            self.tidy(time.time() - LEFT_S)

    def tidy(self, before: float = inf) -> None:
        """Removes contents, complete or partial, that belong to no counted contribution.

        Only those last written before `before` (seconds since 1970).
        """
        self.contributions.prune(self.latest_closed(), before)

    def close(self) -> None:
        """Closes the folder. May be called twice."""
        self._db.close()

    def identity(self) -> Identity | None:
        """The identity of the folder's run; None for a new folder."""
        rows = self._db.rows("SELECT task, run, bundle FROM meta")
        return Identity(*rows[0]) if rows else None

    def begin_run(self, identity: Identity) -> None:
        """Makes the folder belong to a run. Raises RunFolderError when it belongs to another one."""
        with self._db.commit() as db:
            values = (identity.task, identity.run, identity.bundles)
            db.execute("INSERT INTO meta VALUES (1, ?, ?, ?) ON CONFLICT DO NOTHING", values)
        if self.identity() != identity:
            raise RunFolderError(f"run folder {self.folder} belongs to a run already")

    def saved(self) -> Saved | None:
        """The run's progress, for `machine.resume`; None for a new run."""
        rows = self._db.rows("SELECT round, phase FROM rounds ORDER BY round DESC LIMIT 1")
        if not rows:
            return None
        number, phase = rows[0]
        counted = self._db.rows("SELECT device, round FROM contributions WHERE into_round = ?", number)
        answered = frozenset(row["device"] for row in counted if row["round"] == number)
        voices = Counter(row["device"] for row in counted)
        asked = {row["device"]: row["round"] for row in self._db.rows("SELECT device, round FROM asked")}
        present = {row["device"]: row["boot"] for row in self._db.rows("SELECT device, boot FROM present")}
        vain = self._db.rows("SELECT deadlines FROM fruitless WHERE round = ?", number)
        fruitless = vain[0]["deadlines"] if vain else 0
        return Saved(number, phase, voices, answered, asked, present=present, fruitless=fruitless)

    def save_presence(self, here: Mapping[str, int], gone: Iterable[str], forgotten: Iterable[str]) -> None:
        """Stores which devices a round may wait for.

        `here`: devices that are present, with the process (`boot`) of each. `gone`: devices that are present
        no longer. `forgotten`: devices whose last asked round is deleted too.
        """
        with self._db.commit() as db:
            db.executemany(_ATTEND, list(here.items()))
            db.executemany("DELETE FROM present WHERE device = ?", [(device,) for device in gone])
            db.executemany("DELETE FROM asked WHERE device = ?", [(device,) for device in forgotten])

    def ask(self, number: int, devices: Iterable[str], earliest: int) -> None:
        """Stores that devices of a cohort were asked for a round.

        Only the latest round of each device is kept, and none before `earliest`.
        """
        with self._db.commit() as db:
            db.execute("DELETE FROM asked WHERE round < ?", (earliest,))
            db.executemany(_ASK, [(device, number) for device in devices])

    def open_round(self, number: int, base: Base, carried: CarriedBlobs) -> None:
        """Stores a new round in the phase "collect"."""
        with self._db.commit() as db:
            db.execute(_OPEN, (number, msgspec.msgpack.encode(base), msgspec.msgpack.encode(carried)))

    def fruitless(self, number: int, deadlines: int) -> None:
        """Stores how many deadlines of an open round were fruitless in a row; see RoundsState."""
        with self._db.commit() as db:
            db.execute(_FRUITLESS, (number, deadlines))

    def open_given(self, number: int, base: Base, carried: CarriedBlobs, steps: Sequence[Step]) -> None:
        """Stores a new round that is given from outside.

        `steps` lead to its base from that of the latest round before it; they replace the steps taken in that
        round.
        """
        with self._db.commit() as db:
            db.execute(_FORGET_TAKEN, (number,))
            rows = [(number - 1, i, msgspec.msgpack.encode(step)) for i, step in enumerate(steps)]
            db.executemany("INSERT INTO steps VALUES (?, ?, ?)", rows)
            db.execute(_OPEN, (number, msgspec.msgpack.encode(base), msgspec.msgpack.encode(carried)))

    def opened(self, number: int) -> bool:
        """Whether a round was opened; its base does not change after that."""
        return bool(self._db.rows("SELECT 1 FROM rounds WHERE round = ?", number))

    def begin_merge(self, number: int, durations: Sequence[tuple[int, int]] = (), early: str = "") -> None:
        """Stores that no more contributions count in the round.

        `durations`: how long its devices needed (see `pace`). `early`: a note that it closed before all
        devices were done.
        """
        with self._db.commit() as db:
            db.execute(
                "UPDATE rounds SET phase = 'merge', note = ? WHERE round = ? AND phase = 'collect'",
                (early, number),
            )
            if durations:
                packed = msgspec.msgpack.encode(durations)
                db.execute("INSERT INTO pace VALUES (?, ?) ON CONFLICT DO NOTHING", (number, packed))

    def paces(self, most: int, before: int) -> tuple[dict[int, int], ...]:
        """The durations (see `pace`) of the last `most` rounds before round `before`, in order."""
        sql = "SELECT durations FROM pace WHERE round < ? ORDER BY round DESC LIMIT ?"
        rows = self._db.rows(sql, before, most)
        kind = list[tuple[int, int]]
        return tuple(dict(msgspec.msgpack.decode(row["durations"], type=kind)) for row in reversed(rows))

    def merged(self, number: int, result: MergeResult) -> None:
        """Stores the result of a merge. The round's note says how it closed, then what the merge noted."""
        early = self._db.rows("SELECT note FROM rounds WHERE round = ? AND phase = 'merge'", number)
        notes = [note for note in (early[0]["note"] if early else "", result.note) if note]
        with self._db.commit() as db:
            db.execute("DELETE FROM steps WHERE round = ?", (number,))
            rows = [(number, i, msgspec.msgpack.encode(step)) for i, step in enumerate(result.steps)]
            db.executemany("INSERT INTO steps VALUES (?, ?, ?)", rows)
            db.execute(
                "UPDATE rounds SET phase = 'evaluate', next_base = ?, next_carried = ?, served = ?, note = ? "
                "WHERE round = ?",
                (
                    msgspec.msgpack.encode(result.base),
                    msgspec.msgpack.encode(result.carried),
                    msgspec.msgpack.encode(result.served),
                    "; ".join(notes),
                    number,
                ),
            )

    def evaluated(self, number: int, figures: ModelEvaluation, served: Blob | None = None) -> None:
        """Stores a round's evaluation. `served`: the model that is served instead of the merged one."""
        with self._db.commit() as db:
            if served is not None:
                db.execute(
                    "UPDATE rounds SET served = ? WHERE round = ?", (msgspec.msgpack.encode(served), number)
                )
            db.execute(
                "UPDATE rounds SET phase = 'publish', figures = ? WHERE round = ?",
                (msgspec.msgpack.encode(figures), number),
            )

    def close_round(self, record: RoundRecord) -> None:
        """Stores the final record of a round, and deletes the contents of its contributions."""
        with self._db.commit() as db:
            db.execute(
                "UPDATE rounds SET phase = 'closed', record = ? WHERE round = ?",
                (msgspec.msgpack.encode(record), record.round),
            )
            db.execute("UPDATE contributions SET body = NULL WHERE into_round = ?", (record.round,))
        self.contributions.prune(record.round)

    def latest_closed(self) -> int:
        """The number of the latest closed round; 0 before there is one."""
        return int(self._db.rows("SELECT coalesce(max(round), 0) FROM rounds WHERE phase = 'closed'")[0][0])

    def every_figures(self) -> tuple[tuple[int, ModelEvaluation], ...]:
        """The evaluation of every closed round, in order."""
        sql = (
            "SELECT round, figures FROM rounds WHERE phase = 'closed' AND figures IS NOT NULL ORDER BY round"
        )
        decode = msgspec.msgpack.decode
        return tuple(
            (row["round"], decode(row["figures"], type=ModelEvaluation)) for row in self._db.rows(sql)
        )

    def made(self, number: int) -> tuple[Base, CarriedBlobs]:
        """The base and the rest that a merged round made, whatever the next round was opened with."""
        return self._read(number, "next_base", Base), self._read(number, "next_carried", CarriedBlobs)

    def base(self, number: int) -> Base:
        """The base of a round that was opened, or of the one after the latest merged one."""
        return self._of_round(number, "base", Base)

    def carried(self, number: int) -> CarriedBlobs:
        """What goes with `base(number)`."""
        return self._of_round(number, "carried", CarriedBlobs)

    def served(self, number: int) -> Blob:
        """The served model of a merged round."""
        return self._read(number, "served", Blob)

    def figures(self, number: int) -> ModelEvaluation:
        """The evaluation of a round."""
        return self._read(number, "figures", ModelEvaluation)

    def closed(self, number: int | None = None) -> tuple[RoundClosed, ...]:
        """Every closed round in order, or the one of this number."""
        records = self.contributions.every_record(number)
        rows = self._db.rows(
            "SELECT round, record, note FROM rounds "
            "WHERE record IS NOT NULL AND round = coalesce(?, round) ORDER BY round",
            number,
        )
        return tuple(
            RoundClosed(
                msgspec.msgpack.decode(row["record"], type=RoundRecord),
                records.get(row["round"], ()),
                row["note"],
            )
            for row in rows
        )

    def _of_round(self, number: int, column: str, kind: type[T]) -> T:
        """The value that the round was opened with, or else the one that the round before made."""
        opened = self.opened(number)
        return self._read(number, column, kind) if opened else self._read(number - 1, f"next_{column}", kind)

    def _read(self, number: int, column: str, kind: type[T]) -> T:
        rows = self._db.rows("SELECT * FROM rounds WHERE round = ?", number)
        if not rows or rows[0][column] is None:
            raise RunFolderError(f"run folder {self.folder} has no {column} of round {number}")
        return msgspec.msgpack.decode(rows[0][column], type=kind)

    def remember(self, base: Base, weights: Tensors) -> None:
        """Keeps a base that was just made in memory, as the next round is made from it."""
        self.latest = Latest(base, weights)
