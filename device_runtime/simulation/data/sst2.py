"""SST-2 (Socher et al. 2013): sentences of film reviews, negative (0) or positive (1)."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import msgspec

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.simulation.errors import DataSetError

from . import text
from .dataset import DataSet
from .files import existing
from .spec import DataSpec
from .tables import TableTask

ENV = "DEVICE_RUNTIME_DATA"
"""Environment variable with the folder to use when `path` is not given."""
LABELS = ("negative", "positive")


def load(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads SST-2 as the source `text` does.

    A folder has one *train.tsv, and for evaluation *test.tsv or, where that has no labels (as GLUE's),
    *dev.tsv. Raises DataSetError.
    """
    if not spec.path:
        spec = msgspec.structs.replace(spec, path=os.environ.get(ENV, ""))
    path = existing(spec)
    if path.is_dir():
        train, test = text.only(path, "train"), _labelled(path, spec)
        spec = msgspec.structs.replace(spec, path=str(train), test_path=str(test))
    data = text.read_texts(spec, seed, None if bundle is None else bundle.texts, None)
    if data.labels != ("0", "1"):
        raise DataSetError(f"{spec.path} has the labels {', '.join(data.labels[:5])}, SST-2 has 0 and 1")
    return replace(data, labels=LABELS)


def _labelled(folder: Path, spec: DataSpec) -> Path:
    for part in ("test", "dev"):
        file = text.only(folder, part)
        task = TableTask.of(spec, None)
        try:
            text.sentences(file, task)
        except DataSetError:
            continue
        if {*task.labels.names} <= {"0", "1"}:
            return file
    raise DataSetError(f"{folder}: neither *test.tsv nor *dev.tsv has a column of the labels 0 and 1")
