"""Collects all samples of a table, as a device reads them, but raw and with their clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .labels import NewLabels
from .local_data import Rows
from .sample_targets import SampleTargets
from .table import ENDINGS, TABLE
from .units import EMPTY, Refused, Skip, SkippedSamples, SkippedTally, Unit, WantedSamples, file_stamp


@dataclass(frozen=True)
class CollectedSamples:
    """The samples of a file.

    x: raw (n, *input). y: class numbers int64 (n,), or raw targets float64 (n, columns). clients: the number
    of each sample's client in `client_names`, -1 for none, (n,); None if the file names none. skipped: what
    was left out. form: how they were stored. notes: what the reader decided by default.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    clients: NDArray[np.int64] | None
    client_names: tuple[str, ...]
    skipped: tuple[SkippedSamples, ...]
    form: str
    notes: tuple[str, ...]


def collect(path: Path, wanted: WantedSamples, targets: SampleTargets) -> CollectedSamples:
    """Reads a file of many samples with their labels. Raises Refused, also if no sample is left."""
    if (ending := path.suffix.lower()) not in ENDINGS:
        raise Refused(f"unsupported kind of file ({ending or 'no ending'})", f"expected {', '.join(ENDINGS)}")
    try:
        unit = Unit(path.name, path, file_stamp(path), TABLE)
    except OSError as error:
        raise Refused("cannot be read", error.strerror) from None
    rows = Rows(wanted.input.shape, wanted.input.dtype)
    skipped, names = SkippedTally(), NewLabels()
    clients: list[NDArray[np.int64]] = []
    values: list[NDArray[Any]] = []
    form = ""
    notes: tuple[str, ...] = ()
    for part in unit.read(wanted):
        if isinstance(part, Skip):
            skipped.add(part)
            continue
        y, read = targets.of(part, None, unit.name, skipped)
        rows.reserve(part.expected, exactly=True)
        rows.append(part.x[read], np.zeros(int(read.sum()), np.int64) if y.ndim > 1 else y[read])
        if y.ndim > 1:
            values.append(y[read])
        if part.clients is not None:
            numbers = [names.number(name) if name else -1 for name in part.clients]
            clients.append(np.array(numbers, np.int64)[read])
        form, notes = part.form, part.notes
    if not len(rows):
        raise Refused("no readable samples", "; ".join(map(str, [*skipped][:3])) or EMPTY)
    data = rows.data
    y = np.concatenate(values) if values else data.y
    whose = np.concatenate(clients) if clients else None
    return CollectedSamples(data.x, y, whose, names.names, tuple(skipped), form, notes)
