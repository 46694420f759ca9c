"""Stores the contributions that count, and the bytes that each device sent and received in a round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, nan

import msgspec

from device_runtime.aggregator.machine.run_events import ContributionRecord
from device_runtime.aggregator.storage.database import Commit, Database, DatabaseRow
from device_runtime.aggregator.tasks.drawing import EarlierUpdates
from device_runtime.broker.wire.blobs import Blobs
from device_runtime.broker.wire.messages import MODELLED, Blob, Mask, Metrics

ALL_ROUNDS = (0, 2**62)
"""The first and last number that a round can have."""

_KEEP = "INSERT INTO contributions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
ROWS_AT_ONCE = 256
"""Contributions that one query reads, with contents of at most INLINE_LIMIT bytes each."""

_SOME = """SELECT * FROM contributions WHERE into_round = ? AND (kind, device, round) > (?, ?, ?)
ORDER BY kind, device, round LIMIT ?"""
_RECORDS = """SELECT round, device, kind, into_round, num_examples, metrics, why, form,
NULL AS blob, NULL AS body
FROM contributions WHERE into_round BETWEEN ? AND ? ORDER BY into_round, kind, device, round"""
SUPERSEDED = 0
"""The `into_round` of a contribution in whose place a newer one of its device counts."""
_NEWER = """SELECT 1 FROM contributions newer WHERE newer.device = contributions.device
AND newer.into_round = contributions.into_round AND newer.round > contributions.round"""
_SUPERSEDE = f"""UPDATE contributions SET into_round = {SUPERSEDED}, body = NULL
WHERE into_round = ? AND EXISTS ({_NEWER})"""  # noqa: S608 - of constants
_FORGET_MASKS = f"""DELETE FROM masks WHERE EXISTS (SELECT 1 FROM contributions c
WHERE c.round = masks.round AND c.device = masks.device AND c.into_round = {SUPERSEDED})"""  # noqa: S608
_SINCE = """SELECT device, max(CASE WHEN into_round < ? THEN into_round END) AS before FROM contributions
WHERE into_round >= ? AND device IN (SELECT device FROM contributions WHERE into_round = ? AND round < ?)
GROUP BY device"""
_LATEST = """SELECT c.device AS device, c.into_round AS into_round, c.metrics AS metrics, s.rounds AS rounds
FROM contributions c JOIN (
SELECT device, count(DISTINCT into_round) AS rounds, max(into_round) AS latest FROM contributions
WHERE into_round BETWEEN 1 AND ? GROUP BY device) s ON s.device = c.device AND s.latest = c.into_round
ORDER BY c.device, c.round"""
_TRAFFIC = "SELECT round, device, up, down FROM traffic WHERE round BETWEEN ? AND ?"
_WITH_BLOB = """SELECT round FROM contributions
WHERE into_round >= (SELECT max(round) FROM rounds) AND blob = ? LIMIT 1"""
_KEEP_MASK = "INSERT INTO masks VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_MASKED = """SELECT c.round AS round, c.device AS device, c.kind AS kind, c.form AS form,
c.num_examples AS num_examples, m.mask AS mask
FROM contributions c JOIN masks m ON m.round = c.round AND m.device = c.device
WHERE c.into_round = ? ORDER BY c.kind, c.round, c.device"""
_SAVE_TRAFFIC = """INSERT INTO traffic VALUES (?, ?, ?, ?) ON CONFLICT (round, device) DO UPDATE
SET up = excluded.up, down = excluded.down"""


@dataclass(frozen=True)
class StoredContribution:
    """A contribution that counts. `round` is the one it was made for, `into` the one it counts in."""

    device: str
    round: int
    into: int
    kind: str
    num_examples: int
    metrics: Metrics
    why: str
    blob: Blob | None
    body: bytes = b""
    form: str = ""
    mask: Mask | None = None


@dataclass(frozen=True)
class MaskedContribution:
    """A masked contribution that counts, without its content."""

    device: str
    round: int
    kind: str
    form: str
    num_examples: int
    mask: Mask


@dataclass(frozen=True)
class DeviceTraffic:
    """The bytes of one device's MQTT packets in one round."""

    up: int = 0
    down: int = 0


class Contributions:
    """The contributions of a run that count. Raises RunFolderError as Database does."""

    def __init__(self, db: Database, updates: Blobs) -> None:
        self._db = db
        self._updates = updates
        self._batch: list[tuple[StoredContribution, DeviceTraffic]] = []
        self._batch_kinds: dict[tuple[int, str], str] = {}

    def sent(self, number: int, device: str) -> str:
        """The kind of the device's contribution that was made for a round and counts, in whatever round.

        Empty if there is none. At most one contribution of a device counts for each round.
        """
        if kind := self._batch_kinds.get((number, device)):
            return kind
        sql = "SELECT kind FROM contributions WHERE round = ? AND device = ?"
        return next((str(row["kind"]) for row in self._db.rows(sql, number, device)), "")

    def keep(self, stored: StoredContribution, moved: DeviceTraffic) -> None:
        """Count a contribution, with the bytes of its device in the round that it counts in.

        It is on disk after `settle`. Its blob, if it has one, must be in `updates`. If the contribution is
        already stored, only the bytes are updated.
        """
        self._batch.append((stored, moved))
        self._batch_kinds[stored.round, stored.device] = stored.kind

    def let_go(self, blob: Blob) -> None:
        """Remove the blob of a contribution that does not count, unless one that counts has the same blob.

        Raises BlobError.
        """
        if not self._updates.has(blob) or any(stored.blob == blob for stored, _ in self._batch):
            return
        if not self._db.rows(_WITH_BLOB, msgspec.msgpack.encode(blob)):
            self._updates.remove(blob)

    def settle(self) -> None:
        """Write what was kept in one commit: all is on disk when this returns, nothing if it raises."""
        with self._db.commit() as db:
            db.executemany(_KEEP, [_row(stored) for stored, _ in self._batch])
            masks = [(stored.round, stored.device, stored.mask) for stored, _ in self._batch if stored.mask]
            db.executemany(_KEEP_MASK, [(*key, msgspec.msgpack.encode(mask)) for *key, mask in masks])
            moved = [(stored.into, stored.device, moved.up, moved.down) for stored, moved in self._batch]
            db.executemany(_SAVE_TRAFFIC, moved)
        self.drop()

    def keep_newest(self, db: Commit, number: int) -> None:
        """Of several contributions of one device that count in a round, let the newest count alone.

        The others stay known, so that they are not counted when they are sent again.
        """
        db.execute(_SUPERSEDE, (number,))
        db.execute(_FORGET_MASKS)

    def drop(self) -> None:
        """Forget what was kept, after it was written or could not be."""
        self._batch, self._batch_kinds = [], {}

    def of_round(self, number: int) -> Iterator[StoredContribution]:
        """The contributions that count in a round, by kind, device and round made for; read in parts."""
        last: tuple[str, str, int] = ("", "", 0)
        while rows := self._db.rows(_SOME, number, *last, ROWS_AT_ONCE):
            yield from map(_stored, rows)
            last = (rows[-1]["kind"], rows[-1]["device"], rows[-1]["round"])

    def masked(self, number: int) -> tuple[MaskedContribution, ...]:
        """The masked contributions that count in a round, by kind, round made for and device."""
        return tuple(_masked(row) for row in self._db.rows(_MASKED, number))

    def masked_content(self, update: MaskedContribution) -> bytes:
        """The content of a masked contribution whose round is not closed. Raises BlobError."""
        sql = "SELECT * FROM contributions WHERE round = ? AND device = ?"
        return self.content(_stored(self._db.rows(sql, update.round, update.device)[0]))

    def since(self, number: int, first: int) -> dict[str, float]:
        """The rounds since each device with a late contribution in round `number` last counted.

        Rounds before `first` are not looked at.
        """
        rows = self._db.rows(_SINCE, number, first, number, number)
        return {row["device"]: float(number - (row["before"] or first - 1)) for row in rows}

    def earlier_updates(self, last: int) -> dict[str, EarlierUpdates]:
        """What counted in rounds 1 to `last`, by device."""
        updates = {}
        for row in self._db.rows(_LATEST, last):
            metrics = msgspec.msgpack.decode(row["metrics"], type=Metrics)
            numbers = row["rounds"], row["into_round"]
            updates[row["device"]] = EarlierUpdates(
                *numbers, metrics.train_loss, metrics.train_time_ms / 1000
            )
        return updates

    def content(self, stored: StoredContribution) -> bytes:
        """The encoded tensors of a contribution whose round is not closed. Raises BlobError."""
        return self._updates.get(stored.blob) if stored.blob else stored.body

    def prune(self, number: int, before: float = inf) -> None:
        """Remove blobs that no contribution to a round after `number` has; `before` as in Blobs.prune."""
        waiting = self._db.rows(
            "SELECT blob FROM contributions WHERE into_round > ? AND blob IS NOT NULL", number
        )
        blobs = [msgspec.msgpack.decode(row["blob"], type=Blob) for row in waiting]
        blobs += [stored.blob for stored, _ in self._batch if stored.blob]
        self._updates.prune(blobs, before)

    def records(self, number: int) -> tuple[ContributionRecord, ...]:
        """The records of a round's contributions, for display and files."""
        return self.every_record((number, number)).get(number, ())

    def every_record(self, rounds: tuple[int, int] = ALL_ROUNDS) -> dict[int, tuple[ContributionRecord, ...]]:
        """The records of the rounds from the first number to the last, by round."""
        moved = {(row["round"], row["device"]): row for row in self._db.rows(_TRAFFIC, *rounds)}
        records: dict[int, list[ContributionRecord]] = {}
        for row in self._db.rows(_RECORDS, *rounds):
            traffic = moved.pop((row["into_round"], row["device"]), None)  # a device's bytes count once
            bytes_moved = DeviceTraffic(traffic["up"], traffic["down"]) if traffic else DeviceTraffic()
            records.setdefault(row["into_round"], []).append(record_of(_stored(row), bytes_moved))
        return {into: tuple(entries) for into, entries in records.items()}

    def traffic(self, number: int) -> dict[str, DeviceTraffic]:
        """The bytes of each device in a round, as last saved."""
        rows = self._db.rows("SELECT device, up, down FROM traffic WHERE round = ?", number)
        return {row["device"]: DeviceTraffic(row["up"], row["down"]) for row in rows}

    def save_traffic(self, number: int, traffic: Mapping[str, DeviceTraffic]) -> None:
        """Save the bytes of each device in a round."""
        rows = [(number, device, moved.up, moved.down) for device, moved in traffic.items()]
        with self._db.commit() as db:
            db.executemany(_SAVE_TRAFFIC, rows)


def _stored(row: DatabaseRow) -> StoredContribution:
    return StoredContribution(
        device=row["device"],
        round=row["round"],
        into=row["into_round"],
        kind=row["kind"],
        num_examples=row["num_examples"],
        metrics=msgspec.msgpack.decode(row["metrics"], type=Metrics),
        why=row["why"],
        blob=msgspec.msgpack.decode(row["blob"], type=Blob) if row["blob"] else None,
        body=row["body"] or b"",
        form=row["form"],
    )


def _masked(row: DatabaseRow) -> MaskedContribution:
    return MaskedContribution(
        device=row["device"],
        round=row["round"],
        kind=row["kind"],
        form=row["form"],
        num_examples=row["num_examples"],
        mask=msgspec.msgpack.decode(row["mask"], type=Mask),
    )


def _row(stored: StoredContribution) -> tuple[object, ...]:
    """A contribution as a row of the table."""
    metrics = msgspec.msgpack.encode(stored.metrics)
    blob = msgspec.msgpack.encode(stored.blob) if stored.blob else None
    key = stored.round, stored.device, stored.kind, stored.into
    return (*key, stored.num_examples, metrics, stored.why, blob, stored.body or None, stored.form)


def record_of(stored: StoredContribution, moved: DeviceTraffic) -> ContributionRecord:
    """A stored contribution in seconds, joules and bytes."""
    metrics = stored.metrics
    return ContributionRecord(
        round=stored.into,
        device=stored.device,
        kind=stored.kind,
        num_examples=stored.num_examples,
        train_loss=metrics.train_loss,
        train_time_s=metrics.train_time_ms / 1000,
        energy_j=metrics.energy_mj / 1000,
        peak_memory_bytes=metrics.peak_memory_kib * 1024,
        bytes_up=moved.up,
        bytes_down=moved.down,
        why=stored.why,
        epsilon=metrics.epsilon_milli / 1000 if metrics.epsilon_milli else nan,
        energy_source=metrics.energy_source or MODELLED,
        energy_uncertainty=metrics.energy_off_percent / 100 if metrics.energy_off_percent else nan,
        variant=stored.form,
    )
