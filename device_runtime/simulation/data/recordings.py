"""Cuts recordings of sensors, a folder for each person or one table of all, into a bundle's windows.

PATH/PERSON is what a device of that person would give to `join --data`. With PATH/train/PERSON and
PATH/test/PERSON the persons to evaluate on are given; otherwise the seed draws them. In a table a column
says whose each row is: each client is a person.
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
from device_runtime.simulation.partition.methods import NOBODY
from device_runtime.user_account import expanded

from .dataset import SPLIT, DataSet
from .files import existing
from .spec import DataSpec
from .tables import TableTask

Ints = NDArray[np.int64]


def load(spec: DataSpec, seed: int, bundle: Bundle | None) -> DataSet:
    """Loads windows float32 (n, channels, length), raw, with the bundle's labels, or targets in columns.

    Groups are the persons. No person has samples on both sides of the split. Raises DataSetError.
    """
    if bundle is None or not cuts_windows(bundle):
        raise DataSetError("source recordings needs a scenario whose bundle was exported with --window-step")
    root = existing(spec)
    if root.is_file():
        return _of_table(root, spec, seed, bundle.manifest)
    for name in ("client_column", "test_path"):
        if value := getattr(spec, name):
            raise DataSetError(f"{name} is {value}, and {root} is a folder: its folders are the clients")
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


def cuts_windows(bundle: Bundle | None) -> bool:
    """Whether the samples of a bundle are cut from recordings."""
    return bundle is not None and isinstance(bundle.manifest.input.window, WindowInput)


def _of_table(path: Path, spec: DataSpec, seed: int, manifest: Manifest) -> DataSet:
    """The windows of a table, whose clients are split unless `test_path` is given. Raises DataSetError."""
    task = TableTask.of(spec, manifest)
    train = task.windows(path, manifest.input)
    groups = None if train.clients is None else train.clients.astype(np.int64)
    parts = [train] if not spec.test_path else [train, task.windows(expanded(spec.test_path), manifest.input)]
    classes = task.names(*(part.y for part in parts), classes=True)
    ys = [classes.targets(part.y) for part in parts]
    clients = () if train.clients is None else (f"clients: {len(train.client_names)}",)
    left_out = (f"left out: {skipped}" for part in parts for skipped in part.skipped)
    notes = (train.form, *train.notes, *clients, *left_out)
    if spec.test_path:
        return DataSet(train.x, ys[0], parts[1].x, ys[1], classes.names, groups, notes=notes)
    owners = np.unique([] if groups is None else groups[groups != NOBODY])
    if groups is None or len(owners) < 2:
        raise DataSetError(
            f"{path} is of {max(1, len(owners))} client, expected 2 or more to split, as in a column of "
            "clients (client_column); or give test_path"
        )
    tested = np.isin(groups, owners[_drawn(len(owners), spec.test_share, seed)])
    own, other = (np.flatnonzero(mask) for mask in (~tested, tested))
    return DataSet(
        train.x[own], ys[0][own], train.x[other], ys[0][other], classes.names, groups[own], notes=notes
    )


def _drawn(persons: int, test_share: float, seed: int) -> list[int]:
    """The numbers of the persons to evaluate on, at least one and not all."""
    order: list[int] = np.random.default_rng([seed, SPLIT]).permutation(persons).tolist()
    return order[: min(max(1, round(test_share * persons)), persons - 1)]


def _persons(root: Path, test_share: float, seed: int) -> tuple[list[Path], list[Path]]:
    """The folders of the persons to train on, and to evaluate on."""
    if (root / "train").is_dir() and (root / "test").is_dir():
        return _folders(root / "train"), _folders(root / "test")
    persons = _folders(root)
    if len(persons) < 2:
        raise DataSetError(f"{root} has {len(persons)} person, expected 2 or more to split")
    tests = {persons[i] for i in _drawn(len(persons), test_share, seed)}
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
        label, features = spec.label_column, spec.feature_columns
        sources = (
            local_data.SampleSource(path, label_column=label, feature_columns=features) for path in persons
        )
        parts = [local_data.load(source, manifest) for source in sources]
    except DataError as error:
        raise DataSetError(str(error)) from None
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    return np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]), numbers
