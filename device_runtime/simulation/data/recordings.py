"""Recordings of sensors, one folder for each person: cut into windows as a bundle says.

PATH/PERSON is what a device of that person would give to `join --data`. With PATH/train/PERSON and
PATH/test/PERSON the persons to evaluate on are given; otherwise the seed draws them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models import data as local_data
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import WindowInput
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.data.listing import is_hidden
from device_runtime.models.errors import DataError
from device_runtime.simulation.errors import DataSetError

from .dataset import SPLIT, DataSet
from .files import existing
from .spec import DataSpec

Ints = NDArray[np.int64]


def load(spec: DataSpec, seed: int, bundle: Bundle | None) -> DataSet:
    """Loads windows float32 (n, channels, length), raw, with the bundle's labels, or targets in columns.

    Groups are the persons. No person has samples on both sides of the split. Raises DataSetError.
    """
    if bundle is None or not isinstance(bundle.manifest.input.window, WindowInput):
        raise DataSetError("source recordings needs a scenario whose bundle was exported with --window-step")
    root = existing(spec)
    raw = msgspec.structs.replace(bundle.manifest.input, scale=1.0, mean=(0.0,), std=(1.0,))
    manifest = msgspec.structs.replace(bundle.manifest, input=raw)
    if (target := manifest.target).has_columns:
        manifest = msgspec.structs.replace(
            manifest, loss=msgspec.structs.replace(target, mean=(0.0,), std=(1.0,))
        )
    train, test = _persons(root, spec.test_share, seed)
    x, y, groups = _windows(train, spec, manifest)
    test_x, test_y, _ = _windows(test, spec, manifest)
    labels = target.columns if target.has_columns else manifest.labels
    return DataSet(x, y, test_x, test_y, labels, groups)


def _persons(root: Path, test_share: float, seed: int) -> tuple[list[Path], list[Path]]:
    """The folders of the persons to train on, and to evaluate on."""
    if (root / "train").is_dir() and (root / "test").is_dir():
        return _folders(root / "train"), _folders(root / "test")
    persons = _folders(root)
    if len(persons) < 2:
        raise DataSetError(f"{root} has {len(persons)} person, expected 2 or more to split")
    order = np.random.default_rng([seed, SPLIT]).permutation(len(persons)).tolist()
    tests = {persons[i] for i in order[: min(max(1, round(test_share * len(order))), len(order) - 1)]}
    return [person for person in persons if person not in tests], sorted(tests)


def _folders(root: Path) -> list[Path]:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and not is_hidden(path.name))
    if not folders:
        raise DataSetError(f"{root} has no folders, expected one for each person")
    return folders


def _windows(
    persons: list[Path], spec: DataSpec, manifest: Manifest
) -> tuple[NDArray[np.float32], Ints, Ints]:
    """The windows of all persons, their labels, and the number of the person of each."""
    try:
        sources = (local_data.SampleSource(path, label_column=spec.label_column) for path in persons)
        parts = [local_data.load(source, manifest) for source in sources]
    except DataError as error:
        raise DataSetError(str(error)) from None
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]), numbers
