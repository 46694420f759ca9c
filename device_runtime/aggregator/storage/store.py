"""Stores a run in one folder: a database for small data, and blobs for large ones.

    run.sqlite   task, rounds, devices asked, contributions, traffic, the log of zeroth-order steps;
                 or database.json, which names the PostgreSQL server that holds them
    models/      bundle, checkpoints, logs, served models; devices may fetch them
    updates/     contributions over INLINE_LIMIT, until their round is merged; no device may fetch them
    sums/        with masks: what mask helpers are asked for and their answers, until their round is merged

The order is always the same: content is made durable, then one commit of the database refers to it, then
others are told. Every write may be repeated, and is repeated where a server was lost. One process owns the
run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from typing import Literal

import msgspec

from device_runtime.aggregator.errors import RunFolderError
from device_runtime.aggregator.limits import RateLimit
from device_runtime.aggregator.machine.events import DevicePresent, Forgotten
from device_runtime.aggregator.machine.run_events import RoundClosed, RoundRecord
from device_runtime.aggregator.machine.state import RoundsState, Saved
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import Base, Blob, Masks, Step
from device_runtime.models.bundles.targets import ACCURACY
from device_runtime.models.bundles.tensors import Tensors

from .contributions import ALL_ROUNDS, Contributions
from .database import Commit, Database
from .history import ServingHistory, StepHistory
from .sums import MaskFault, StoredSums, SumRecord

log = logging.getLogger(__name__)

LEFT_S = 600.0
"""When a run is opened, content that no contribution refers to is removed if it is older than this."""

PRESENCE_BURST, PRESENCE_RATE = 8.0, 0.2
"""Writes of one device's presence at once, and each second after that: it may come and go all the time."""
_OPEN = """INSERT INTO rounds (round, phase, base, carried) VALUES (?, 'collect', ?, ?)
ON CONFLICT DO NOTHING"""
_FORGET_TAKEN = """DELETE FROM steps
WHERE round >= (SELECT coalesce(max(round), 0) FROM rounds WHERE round < ?)"""
_EVERY_FIGURES = """SELECT round, figures FROM rounds
WHERE phase = 'closed' AND figures IS NOT NULL ORDER BY round"""
_CLOSED = """SELECT round, record, note, published_s FROM rounds LEFT JOIN versions USING (round)
WHERE record IS NOT NULL AND round BETWEEN ? AND ? ORDER BY round"""
_END_COLLECT = """UPDATE rounds SET phase = ?, note = CASE WHEN phase = 'collect' THEN ? ELSE note END
WHERE round = ? AND phase IN ('collect', 'unmask')"""
_MERGED = """UPDATE rounds SET phase = 'evaluate', next_base = ?, next_carried = ?, served = ?, note = ?
WHERE round = ?"""

_packed, _read = msgspec.msgpack.encode, msgspec.msgpack.decode


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
    held_out_acc: on `held_out_samples` samples that devices held out, of `held_out_head` of the round before;
    held_out_other_acc: of the other head (`closed_form.HeldOutAccuracy`); nan without.
    """

    eval_acc: float
    eval_loss: float
    base_eval_acc: float
    metric: str = ACCURACY
    metrics: dict[str, float] = field(default_factory=dict)
    held_out_acc: float = nan
    held_out_samples: int = 0
    held_out_head: str = ""
    held_out_other_acc: float = nan


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
class RoundStart:
    """What a round distributes: its base, and what goes with it."""

    base: Base
    carried: CarriedBlobs


@dataclass(frozen=True)
class RoundModels(RoundStart):
    """The models that a round made: what the next one starts with, and the served model."""

    served: Blob

    @property
    def blobs(self) -> tuple[Blob, ...]:
        """All blobs that a rollback to it needs, besides the steps since the checkpoint."""
        return (*self.base.checkpoint, *self.carried.blobs, self.served)


@dataclass(frozen=True)
class MergeResult:
    """The result of a merge: the models, the steps taken, and with masks the sums.

    `note` says what was unusual, if anything. `faults`: of devices, in sums that cannot be.
    """

    models: RoundModels
    steps: tuple[Step, ...] = ()
    note: str = ""
    sums: tuple[SumRecord, ...] = ()
    faults: tuple[MaskFault, ...] = ()


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
        try:
            self._open(reading)
        except BaseException:
            self._db.close()
            raise

    def _open(self, reading: bool) -> None:
        folder = self.folder
        self.models, self.updates = Blobs(folder / "models"), Blobs(folder / "updates")
        self.contributions = Contributions(self._db, self.updates)
        self.sums = StoredSums(self._db, folder / "sums")
        self.rounds = StoredRounds(self._db, self.contributions, self.sums)
        self.history, self.step_history = ServingHistory(self._db), StepHistory(self._db)
        self.session = SavedSession(self._db)
        self.latest: Latest | None = None
        """The base that was made last, as the next round is made from it."""
        if not reading:
            self.tidy(time.time() - LEFT_S)

    def tidy(self, before: float = inf) -> None:
        """Removes contents, complete or partial, that belong to no counted contribution.

        Only those last written before `before` (seconds since 1970).
        """
        self.contributions.prune(self.rounds.latest_closed(), before)

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

    def change_task(self, task: bytes) -> None:
        """Makes `task` that of the folder's run."""
        with self._db.commit() as db:
            db.execute("UPDATE meta SET task = ?", (task,))


_ATTEND = "INSERT INTO present VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET boot = excluded.boot"
_ASK = "INSERT INTO asked VALUES (?, ?) ON CONFLICT (device) DO UPDATE SET round = excluded.round"
_FRUITLESS = """INSERT INTO fruitless VALUES (?, ?)
ON CONFLICT (round) DO UPDATE SET deadlines = excluded.deadlines"""


class SavedSession:
    """What a restart needs in addition to rounds and contributions. Raises as Database.

    It holds the changes of presence that are not on the disk yet; all else is durable at once.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._changed: set[str] = set()
        self._forgotten: set[str] = set()
        self._written: dict[str, int | None] = {}
        """The boot that is on the disk for a device; None for one that is not present."""
        self._rate_limit = RateLimit(PRESENCE_BURST, PRESENCE_RATE)

    def saved(self) -> Saved | None:
        """The run's progress, for `machine.resume`; None for a new run."""
        rows = self._db.rows("SELECT round, phase FROM rounds ORDER BY round DESC LIMIT 1")
        if not rows:
            return None
        number, phase = rows[0]
        counted = self._db.rows("SELECT device, round FROM contributions WHERE into_round = ?", number)
        answered = frozenset(row["device"] for row in counted if row["round"] == number)
        sent = Counter(row["device"] for row in counted)
        newest: dict[str, int] = {}
        for row in counted:
            newest[row["device"]] = max(row["round"], newest.get(row["device"], 0))
        cohort = {row["device"]: row["round"] for row in self._db.rows("SELECT device, round FROM asked")}
        present = {row["device"]: row["boot"] for row in self._db.rows("SELECT device, boot FROM present")}
        saved = Saved(number, phase, sent, answered, cohort, present=present, newest=newest)
        return replace(saved, fruitless=self._fruitless(number))

    def ask(self, number: int, devices: Iterable[str], earliest: int) -> None:
        """Stores that devices of a cohort were asked for a round.

        Only the latest round of each device is kept, and none before `earliest`.
        """
        with self._db.commit() as db:
            db.execute("DELETE FROM asked WHERE round < ?", (earliest,))
            db.executemany(_ASK, [(device, number) for device in devices])

    def fruitless(self, number: int, deadlines: int) -> None:
        """Stores how many deadlines of an open round were fruitless in a row; see RoundsState."""
        if deadlines != self._fruitless(number):
            with self._db.commit() as db:
                db.execute(_FRUITLESS, (number, deadlines))

    def _fruitless(self, number: int) -> int:
        rows = self._db.rows("SELECT deadlines FROM fruitless WHERE round = ?", number)
        return rows[0]["deadlines"] if rows else 0

    def note(self, event: DevicePresent | Forgotten) -> None:
        """Notes that a device came, went, is ready, or is to be forgotten."""
        self._changed.add(event.device)
        if isinstance(event, Forgotten):
            self._forgotten.add(event.device)

    def settle(self, state: RoundsState, now: float = inf) -> None:
        """Writes the changes of presence that are new, of each device within its rate.

        `now`: of any one clock; infinity writes all. What the disk refuses is written the next time.
        """
        stored = self._written.keys() - self._forgotten
        self._changed -= {
            device for device in self._changed & stored if self._written[device] == _boot(state, device)
        }
        due = {
            device for device in self._changed if device not in stored or self._rate_limit.lets(device, now)
        }
        if not due:
            return
        boots = {device: _boot(state, device) for device in due}
        here = [(device, boot) for device, boot in boots.items() if boot is not None]
        gone = [(device,) for device, boot in boots.items() if boot is None]
        forgotten = self._forgotten & due
        try:
            with self._db.commit() as db:
                db.executemany(_ATTEND, here)
                db.executemany("DELETE FROM present WHERE device = ?", gone)
                unasked = [(device,) for device in forgotten if device not in state.asked]
                db.executemany("DELETE FROM asked WHERE device = ?", unasked)
        except RunFolderError as error:
            log.warning("the presence of devices is not stored: %s", error)
            return
        self._written |= boots
        for device in forgotten:
            del self._written[device]
        self._changed -= due
        self._forgotten -= due


def _boot(state: RoundsState, device: str) -> int | None:
    """The life of a device that is present and ready; None for one that is not."""
    presence = state.devices.get(device)
    return presence.boot if presence and presence.online and presence.ready else None


class StoredRounds:
    """The rounds of a run, each with its phase, its models, and its record. Raises as Database."""

    def __init__(self, db: Database, contributions: Contributions, sums: StoredSums) -> None:
        self._db, self._contributions, self._sums = db, contributions, sums

    def open(
        self,
        number: int,
        start: RoundStart,
        steps: Sequence[Step] | None = None,
        masks: Masks | None = None,
    ) -> None:
        """Stores a new round in the phase "collect", with how its updates are masked, if they are.

        `steps`, of a round that is given from outside, lead to its base from that of the latest round before
        it; they replace the steps taken in that round.
        """
        with self._db.commit() as db:
            if steps is not None:
                db.execute(_FORGET_TAKEN, (number,))
                _add_steps(db, number - 1, steps)
            db.execute(_OPEN, (number, _packed(start.base), _packed(start.carried)))
            if masks is not None:
                self._sums.add_masks(db, number, masks)

    def opened(self, number: int) -> bool:
        """Whether a round was opened; its base does not change after that."""
        return bool(self._db.rows("SELECT 1 FROM rounds WHERE round = ?", number))

    def begin_merge(
        self,
        number: int,
        durations: Sequence[tuple[int, int]] = (),
        early: str = "",
        phase: Literal["unmask", "merge"] = "merge",
    ) -> None:
        """Stores that no more contributions count in the round, which is merged, or unmasked first.

        Of several contributions of a device the newest counts.

        `durations`: how long its devices needed (see `pace`). `early`: a note that it closed before all
        devices were done.
        """
        with self._db.commit() as db:
            db.execute(_END_COLLECT, (phase, early, number))
            self._contributions.keep_newest(db, number)
            if durations:
                sql = "INSERT INTO pace VALUES (?, ?) ON CONFLICT DO NOTHING"
                db.execute(sql, (number, _packed(durations)))

    def paces(self, most: int, before: int) -> tuple[dict[int, int], ...]:
        """The durations (see `pace`) of the last `most` rounds before round `before`, in order."""
        sql = "SELECT durations FROM pace WHERE round < ? ORDER BY round DESC LIMIT ?"
        rows = self._db.rows(sql, before, most)
        kind = list[tuple[int, int]]
        return tuple(dict(_read(row["durations"], type=kind)) for row in reversed(rows))

    def merged(self, number: int, result: MergeResult) -> None:
        """Stores the result of a merge. The round's note says how it closed, then what the merge noted."""
        early = self._db.rows("SELECT note FROM rounds WHERE round = ? AND phase = 'merge'", number)
        note = "; ".join(note for note in (early[0]["note"] if early else "", result.note) if note)
        models = result.models
        with self._db.commit() as db:
            db.execute("DELETE FROM steps WHERE round = ?", (number,))
            _add_steps(db, number, result.steps)
            values = (_packed(models.base), _packed(models.carried), _packed(models.served), note, number)
            db.execute(_MERGED, values)
            self._sums.add_records(db, number, result.sums)
            self._sums.faults.add(db, number, result.faults)

    def evaluated(self, number: int, figures: ModelEvaluation, served: Blob | None = None) -> None:
        """Stores a round's evaluation. `served`: the model that is served instead of the merged one."""
        with self._db.commit() as db:
            if served is not None:
                db.execute("UPDATE rounds SET served = ? WHERE round = ?", (_packed(served), number))
            sql = "UPDATE rounds SET phase = 'publish', figures = ? WHERE round = ?"
            db.execute(sql, (_packed(figures), number))

    def close(self, record: RoundRecord) -> None:
        """Stores the final record of a round, and deletes the contents of its contributions."""
        with self._db.commit() as db:
            sql = "UPDATE rounds SET phase = 'closed', record = ? WHERE round = ?"
            db.execute(sql, (_packed(record), record.round))
            db.execute("UPDATE contributions SET body = NULL WHERE into_round = ?", (record.round,))
            self._sums.forget(db, record.round)
        self._contributions.prune(record.round)
        self._sums.prune()

    def latest_closed(self) -> int:
        """The number of the latest closed round; 0 before there is one."""
        return int(self._db.rows("SELECT coalesce(max(round), 0) FROM rounds WHERE phase = 'closed'")[0][0])

    def every_figures(self) -> tuple[tuple[int, ModelEvaluation], ...]:
        """The evaluation of every closed round, in order."""
        rows = self._db.rows(_EVERY_FIGURES)
        return tuple((row["round"], _read(row["figures"], type=ModelEvaluation)) for row in rows)

    def start(self, number: int) -> RoundStart:
        """What a round was opened with, or what the latest merged round made for the next one."""
        rows = self._db.rows("SELECT base, carried FROM rounds WHERE round = ?", number)
        if not rows:
            return self.made(number - 1)
        base, carried = rows[0]
        return RoundStart(_read(base, type=Base), _read(carried, type=CarriedBlobs))

    def made(self, number: int) -> RoundModels:
        """The models that a merged round made, whatever the next round was opened with."""
        base, carried, served = self._values(number, "next_base", "next_carried", "served")
        return RoundModels(
            _read(base, type=Base), _read(carried, type=CarriedBlobs), _read(served, type=Blob)
        )

    def figures(self, number: int) -> ModelEvaluation:
        """The evaluation of a round."""
        return _read(*self._values(number, "figures"), type=ModelEvaluation)

    def closed(self, number: int | None = None) -> tuple[RoundClosed, ...]:
        """Every closed round in order, or the one of this number."""
        rounds = ALL_ROUNDS if number is None else (number, number)
        records = self._contributions.every_record(rounds)
        return tuple(
            RoundClosed(
                _read(row["record"], type=RoundRecord),
                records.get(row["round"], ()),
                row["note"],
                nan if row["published_s"] is None else row["published_s"],
            )
            for row in self._db.rows(_CLOSED, *rounds)
        )

    def _values(self, number: int, *columns: str) -> list[bytes]:
        """These columns of a round. Raises RunFolderError where it has none of them yet."""
        rows = self._db.rows("SELECT * FROM rounds WHERE round = ?", number)
        for column in columns:
            if not rows or rows[0][column] is None:
                raise RunFolderError(f"run folder {self._db.folder} has no {column} of round {number}")
        return [rows[0][column] for column in columns]


def _add_steps(db: Commit, number: int, steps: Sequence[Step]) -> None:
    """Stores the steps that a round took."""
    rows = [(number, position, _packed(step)) for position, step in enumerate(steps)]
    db.executemany("INSERT INTO steps VALUES (?, ?, ?)", rows)
