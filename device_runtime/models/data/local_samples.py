"""Holds the samples of a source for a task; reads each file once, and again only when it has changed."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import Texts
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.errors import DataError, NoSamples, TensorError

from .labels import LabelMap, SampleTargets
from .listing import listing
from .local_data import LEAST_HELD_OUT, SHARE, LocalData, Rows, is_held_out, memory_limit
from .sample_source import SampleSource
from .units import (
    EMPTY,
    RawSamples,
    Refused,
    Skip,
    SkippedSamples,
    SkippedTally,
    TemporarilyRefused,
    Unit,
    WantedSamples,
    file_stamp,
)

log = logging.getLogger(__name__)

BLOCK = 256
"""Number of samples that are prepared at once."""
FULL = "no memory for more samples"
NO_VALUES = (inf, -inf)
BEYOND = 1.5
"""Values beyond this multiple of the task's range are reported as wrongly scaled."""
NARROW = 1 / 50
"""Values that span less than this share of the task's range are reported as wrongly scaled."""


@dataclass(frozen=True)
class Selection:
    """Which samples are held out, and how many are kept.

    held_out: the share of samples held out of training, chosen by their content and `seed`; None: a tenth if
    that is 10 samples or more, else none.
    room_bytes: the most that all prepared samples may take, half of what the process may hold while it reads;
    None sets no limit.
    """

    held_out: float | None = 0.0
    seed: int = 0
    room_bytes: int | None = None


@dataclass
class _Record:
    """A unit that was read.

    counts: its rows for training and held out.
    skipped: the samples that were skipped, by reason.
    forms: number of samples by format.
    full: nothing was kept, for lack of room.
    values: the least and the largest raw value.
    notes: what the reader decided by default.
    """

    stamp: tuple[int, int]
    label: str | None
    counts: tuple[int, int] = (0, 0)
    skipped: SkippedTally = field(default_factory=SkippedTally)
    forms: Counter[str] = field(default_factory=Counter)
    full: bool = False
    values: tuple[float, float] = NO_VALUES
    notes: tuple[str, ...] = ()

    def is_still(self, unit: Unit | None) -> bool:
        """Whether the unit is unchanged since it was read."""
        return unit is not None and (unit.stamp, unit.label) == (self.stamp, self.label)


class LocalSamples:
    """The samples of a source; `refresh` reads new or changed files, `training` and `holdout` give all."""

    def __init__(
        self,
        source: SampleSource,
        manifest: Manifest,
        keep: Selection | None = None,
        texts: Texts | None = None,
    ) -> None:
        """Reads nothing yet; `texts` are the bundle's. Raises DataError for a label map that does not fit."""
        self._labels, target = LabelMap.of(source, manifest.labels), manifest.target
        self._of_files = self._labels  # of files that have one label as a whole
        self.source = source = for_task(source, self._labels, target, texts is not None)
        self.manifest, self._keep = manifest, keep or Selection()
        self._targets = SampleTargets(self._labels, target, source.unlabelled)
        self._request = WantedSamples(manifest.input, source, self._keep.room_bytes, texts)
        spec = manifest.input
        self._rows = tuple(Rows(spec.shape, spec.stored_dtype, target) for _ in range(2))
        self._units: dict[str, _Record] = {}  # in the order of their rows
        self._strays = SkippedTally()
        self._sides = self._split_sides()

    @property
    def training(self) -> LocalData:
        """The samples to train on; views that are valid until the next `refresh`."""
        return self._sides[0]

    @property
    def holdout(self) -> LocalData:
        """The samples held out of training, with all anomalies if the task reconstructs its input; views."""
        return self._sides[1]

    @property
    def everything(self) -> LocalData:
        """All samples; views as in `training` where none is held out."""
        if not len(self.holdout):
            return self.training
        sides = self._sides
        return LocalData(*(np.concatenate([getattr(side, name) for side in sides]) for name in ("x", "y")))

    @property
    def skipped(self) -> tuple[SkippedSamples, ...]:
        """The files and samples that are skipped, by reason."""
        every = SkippedTally()
        for tally in (self._strays, *(record.skipped for record in self._units.values())):
            for entry in tally:
                every.add(entry)
        return tuple(every)

    @property
    def forms(self) -> Counter[str]:
        """The number of samples by format."""
        every: Counter[str] = Counter()
        for record in self._units.values():
            every.update(record.forms)
        return every

    @property
    def notes(self) -> tuple[str, ...]:
        """What the readers decided by default, each once."""
        return tuple(dict.fromkeys(note for record in self._units.values() for note in record.notes))

    @property
    def values(self) -> tuple[float, float] | None:
        """The least and the largest raw value of all samples; None without samples."""
        ranges = [record.values for record in self._units.values() if record.values != NO_VALUES]
        return (min(low for low, _ in ranges), max(high for _, high in ranges)) if ranges else None

    @property
    def scale_warning(self) -> str:
        """A warning if the values seem scaled differently from what the task expects, else empty."""
        usual = self.manifest.input.usual_range
        if usual is None or self.values is None:
            return ""
        (low, high), (least, most) = self.values, usual
        room = (BEYOND - 1) * (most - least)
        narrow = high - low < NARROW * (most - least)
        if low >= least - room and high <= most + room and not narrow:
            return ""
        return f"values are {low:.3g} to {high:.3g}, the task expects {least:g} to {most:g}: scale them alike"

    @property
    def stamp(self) -> frozenset[tuple[str, int, int]]:
        """The files that were read: name, size in bytes, last change in ns, as they were then."""
        return frozenset((name, *record.stamp) for name, record in self._units.items())

    @property
    def memory_bytes(self) -> int:
        """Bytes of all prepared samples."""
        return sum(len(rows) * rows.row_bytes for rows in self._rows)

    def refresh(self) -> bool:
        """Reads files that are new, changed or of another class now, and drops those that are gone.

        Returns whether `training` and `holdout` must be read again.
        """
        contents = listing(self.source)
        self._strays = contents.strays
        before_files = self._of_files.are_misnumbered
        self._of_files = self._labels.among(
            {unit.label for unit in contents.units.values() if unit.label is not None}
        )
        gone = {name for name, record in self._units.items() if not record.is_still(contents.units.get(name))}
        if self._of_files.are_misnumbered != before_files:
            gone |= {name for name, record in self._units.items() if record.label is not None}
        if gone:  # units that had no room may fit now
            self._forget(gone | {name for name, record in self._units.items() if record.full})
        new = [unit for name, unit in contents.units.items() if name not in self._units]
        before = self._row_counts
        with memory_limit(self._keep.room_bytes):
            self._reserve(len(new))
            for unit in new:
                self._take(unit)
        self._sides = self._split_sides()
        return bool(gone) or self._row_counts != before

    def _split_sides(self) -> tuple[LocalData, LocalData]:
        """Samples for training, and held out; by default, less than LEAST_HELD_OUT are trained on as well."""
        training, holdout = (rows.data for rows in self._rows)
        if self._keep.held_out is not None or self.source.unlabelled or not 0 < len(holdout) < LEAST_HELD_OUT:
            return training, holdout
        x, y = np.concatenate([training.x, holdout.x]), np.concatenate([training.y, holdout.y])
        return LocalData(x, y), LocalData(holdout.x[:0], holdout.y[:0])

    def _take(self, unit: Unit) -> None:
        """Reads all samples of a unit, or none; a unit that changes meanwhile is left for the next time."""
        starts = tuple(len(rows) for rows in self._rows)
        record = _Record(unit.stamp, unit.label)
        try:
            if unit.label is not None and not self.manifest.target.has_columns:
                self._of_files.number(unit.label)  # refuses an unknown label before anything is read
            for part in unit.read(self._request):
                if isinstance(part, Skip):
                    record.skipped.add(part)
                else:
                    self._keep_batch(part, unit, record)
            if not (record.forms or tuple(record.skipped)):
                record.skipped.add(Skip(EMPTY, unit.name))
            if not unit.sample_format.grows and _stamp(unit) != unit.stamp:
                raise TemporarilyRefused("changed while it was read: it is read the next time")
        except (Refused, MemoryError) as error:
            why = error if isinstance(error, Refused) else TemporarilyRefused("no memory to read it", error)
            for rows, start in zip(self._rows, starts, strict=True):
                rows.cut(start)
            if isinstance(why, TemporarilyRefused):
                self._strays.add(Skip.of(why, unit.name))
                return
            record = _Record(unit.stamp, unit.label, full=why.reason == FULL)
            record.skipped.add(Skip.of(why, unit.name))
        record.counts = (len(self._rows[0]) - starts[0], len(self._rows[1]) - starts[1])
        self._units[unit.name] = record

    def _keep_batch(self, batch: RawSamples, unit: Unit, record: _Record) -> None:
        """Prepares and keeps the valid samples of the task's classes, block by block. Raises Refused."""
        y, read = self._targets.of(batch, unit.label, unit.name, record.skipped)
        y = self.manifest.target.prepare(y) if self.manifest.target.has_columns and read.any() else y
        self._reserve(len(y), batch.expected - record.forms.total())
        together = False
        for start in range(0, len(y), BLOCK):
            part = slice(start, start + BLOCK)
            mask = read[part]
            x, targets = batch.x[part], y[part][mask]
            x = x if mask.all() else x[mask]
            self._check_room(len(x))
            prepared, valid = self._prepared(x, unit, record)
            if not valid.all():
                x, targets = x[valid], targets[valid]
            if x.size:
                low, high = record.values
                record.values = min(low, float(x.min())), max(high, float(x.max()))
            share = SHARE if self._keep.held_out is None else self._keep.held_out
            holdout = is_held_out(prepared, share, self._keep.seed)
            if self.source.unlabelled:  # anomalies are evaluated, not trained on
                holdout |= targets > 0
            if batch.together and len(holdout):  # the first sample decides, also when a recording grows
                holdout[:] = together = bool(holdout[0]) if start == 0 else together
            for rows, chosen in zip(self._rows, (~holdout, holdout), strict=True):
                if chosen.all():
                    rows.append(prepared, targets)
                elif chosen.any():
                    rows.append(prepared[chosen], targets[chosen])
            record.forms[batch.form] += len(targets)
        record.notes = batch.notes

    def _prepared(
        self, raw: NDArray[Any], unit: Unit, record: _Record
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The valid samples as the graphs take them, and whether each is valid; the others are skipped."""
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                x = self.manifest.input.prepare(raw)
        except TensorError as error:
            if len(raw) > 1:
                each = [self._prepared(sample[None], unit, record) for sample in raw]
                return np.concatenate([x for x, _ in each]), np.concatenate([valid for _, valid in each])
            record.skipped.add(Skip("not what the task's input takes", f"{unit.name}: {error}"))
            return self._rows[0].data.x[:0], np.zeros(len(raw), bool)
        valid = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
        if count := int((~valid).sum()):
            record.skipped.add(SkippedSamples("values are not finite", count, (unit.name,)))
        return (x, valid) if not count else (x[valid], valid)

    @property
    def _row_counts(self) -> tuple[int, ...]:
        """Numbers that differ if samples were added or the buffers moved."""
        return tuple(number for rows in self._rows for number in (len(rows), rows.room))

    def _reserve(self, count: int, expected: int = 0) -> None:
        """Reserves room for `count` more samples, or for as many as are allowed.

        expected: the most that come for training, which then get room without being moved.
        """
        if (room := self._keep.room_bytes) is not None:
            allowed = max(0, room - self.memory_bytes) // self._rows[0].row_bytes
            count, expected = min(count, allowed), min(expected, allowed)
        training = self._rows[0]
        if len(training) + count > training.room and expected > count:
            training.reserve(len(training) + expected, exactly=True)
        for rows in self._rows:
            rows.reserve(len(rows) + count)

    def _check_room(self, count: int) -> None:
        room = self._keep.room_bytes
        if room is not None and self.memory_bytes + count * self._rows[0].row_bytes > room:
            raise Refused(FULL, f"they may take {room / 1e6:.0f} MB")

    def _forget(self, names: set[str]) -> None:
        """Drops the rows of all these units at once; the rows behind them move up."""
        stays = np.array([name not in names for name in self._units])
        for side, rows in enumerate(self._rows):
            rows.keep(stays.repeat([record.counts[side] for record in self._units.values()]))
        self._units = {name: record for name, record in self._units.items() if name not in names}


def for_task(
    source: SampleSource, labels: LabelMap | None, target: TargetSpec, texts: bool = False
) -> SampleSource:
    """The source as a task reads it. labels: of the task. texts: whether its samples are texts."""
    of_classes = labels is not None and not target.has_columns
    return replace(
        source,
        task_labels=labels.names if of_classes and labels else frozenset(),
        classes=len(labels) if of_classes and labels else 0,
        target_columns=target.columns,
        unlabelled=target.compared == "input",
        texts=texts,
    )


def _stamp(unit: Unit) -> tuple[int, int] | None:
    """The present stamp of the unit's file; None if it is gone."""
    try:
        return file_stamp(unit.path)
    except OSError:
        return None


def load(source: SampleSource | Path | str, manifest: Manifest, texts: Texts | None = None) -> LocalData:
    """All samples of a source, prepared for the bundle; see `open_samples`."""
    return open_samples(source, manifest, texts=texts).training


def open_samples(
    source: SampleSource | Path | str,
    manifest: Manifest,
    keep: Selection | None = None,
    texts: Texts | None = None,
) -> LocalSamples:
    """Reads the samples of a source; skips unreadable ones and those of other classes, with a warning.

    texts: of the bundle. Raises DataError if nothing is left, NoSamples if there was nothing.
    """
    source = SampleSource.of(source).check()
    samples = LocalSamples(source, manifest, keep, texts)
    samples.refresh()
    for skipped in samples.skipped:
        log.warning("skipped %s", skipped)
    if samples.scale_warning:
        log.warning("%s: %s", source, samples.scale_warning)
    if not len(samples.training) and not (samples.source.unlabelled and len(samples.holdout)):
        if count := len(samples.holdout):
            raise DataError(
                f"{source}: all samples, {count}, would be held out of training: give --held-out 0"
            )
        why = "; ".join(str(skipped) for skipped in samples.skipped[:3])
        if all(skipped.reason == EMPTY for skipped in samples.skipped):
            raise NoSamples(f"no samples in {source}: {why or 'nothing is there'}")
        raise DataError(f"no readable samples in {source}: {why}")
    return samples
