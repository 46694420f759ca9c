"""Folders of pictures, read as a device reads them: a folder for each class, or tables that list files.

Below `train` and `test` (or `val`), or in one tree to be split. Other files that a device takes from a
folder, such as sounds and .npz files, are taken here as well.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import InputSpec
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.bundles.targets import CROSS_ENTROPY, TargetSpec
from device_runtime.models.data.cells import column_values, folded
from device_runtime.models.data.labels import FILE, LabelMap
from device_runtime.models.data.listing import WHOLE, is_hidden, listing
from device_runtime.models.data.local_data import Rows
from device_runtime.models.data.local_samples import for_task
from device_runtime.models.data.pictures import BYTE, is_picture, white
from device_runtime.models.data.sample_source import SampleSource
from device_runtime.models.data.units import Refused, Skip, SkippedSamples, SkippedTally, Unit, WantedSamples
from device_runtime.models.errors import DataError, TensorError
from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet, Samples, all_numbers, in_order, split
from .files import cached, existing, listing_key, with_progress
from .spec import DataSpec

log = logging.getLogger(__name__)

ARRAYS = (".npy", *WHOLE)
"""Files whose values are of any type; pictures and sounds have bytes."""
TESTS = ("test", "val", "valid", "validation")
NOBODY = -1
SIZE = DataSpec().size
"""The default, which a bundle replaces."""


def load(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads pictures as the bundle's input, raw; without a bundle as uint8 (n, 3, size, size).

    The largest part in the middle is resized. Classes have the bundle's numbers, or without a bundle the
    order of their names. What cannot be read is left out with a warning. Raises DataSetError.
    """
    root = existing(spec)
    task = FolderTask.of(root, spec, None if bundle is None else bundle.manifest)
    train = root / "train"
    if not train.is_dir():
        listed = task.listed(root)
        [every], labels = task.read([listed])
        samples = Samples(every.x, every.y, labels, every.clients)
        return split(samples, spec.test_share, seed, in_place=True)
    test = next((root / name for name in TESTS if (root / name).is_dir()), None)
    if test is None:
        raise DataSetError(f"{root} has a folder train, but none of {', '.join(TESTS)}")
    listed, others = task.listed(train), task.listed(test)
    if task.manifest is None and (strange := sorted(others.names - listed.names)):
        raise DataSetError(f"{test} has the class {strange[0]!r}, which {train} does not have")
    [training, testing], labels = task.read([listed, others])
    return DataSet(training.x, training.y, testing.x, testing.y, labels, training.clients)


class ListedPicture(NamedTuple):
    """A file or table of a folder, and its client ("" for none)."""

    unit: Unit
    client: str


@dataclass(frozen=True)
class ListedFolder:
    """The files of a folder that are read, and those that are skipped."""

    folder: Path
    files: list[ListedPicture]
    skipped: SkippedTally

    @property
    def names(self) -> set[str]:
        """The labels of files, folded."""
        return {folded(file.unit.label) for file in self.files if file.unit.label is not None}


class FolderSamples(NamedTuple):
    """Samples x raw (n, *input), their targets y, and their clients, (n,); None where no file has one."""

    x: NDArray[Any]
    y: NDArray[Any]
    clients: NDArray[np.int64] | None


@dataclass(frozen=True)
class ClassOrder:
    """Numbers classes in the order of their names, where no task does; case and accents do not count."""

    labels: tuple[str, ...]

    @classmethod
    def of(cls, names: Iterable[str]) -> ClassOrder:
        first: dict[str, str] = {}
        for name in sorted(names):
            first.setdefault(folded(name), name)
        return cls(in_order(first.values()))

    def number(self, name: str) -> int:
        return [folded(label) for label in self.labels].index(folded(name))


@dataclass(frozen=True)
class FolderTask:
    """How folders are read: as on a device of the bundle (`manifest`), or without one.

    labels: of the bundle, with the label map; None where the data number their own classes. file: the label
    map.
    """

    spec: DataSpec
    input: InputSpec
    target: TargetSpec
    manifest: Manifest | None = None
    labels: LabelMap | None = None
    file: Path | None = None

    @classmethod
    def of(cls, root: Path, spec: DataSpec, manifest: Manifest | None) -> FolderTask:
        """Raises DataSetError for a label map that does not fit."""
        if manifest is None:
            return cls(spec, InputSpec((3, spec.size, spec.size), 1 / BYTE), CROSS_ENTROPY)
        if spec.size not in (SIZE, manifest.input.shape[-1]) and is_picture(manifest.input):
            takes = "x".join(map(str, manifest.input.shape))
            raise DataSetError(f"size is {spec.size}, and bundle {manifest.name} takes {takes}: leave it out")
        file = next((path for path in (root / FILE, root / "train" / FILE) if path.is_file()), None)
        try:
            labels = LabelMap.of(SampleSource(root, labels=file), manifest.labels)
        except DataError as error:
            raise DataSetError(str(error)) from None
        by_name = manifest.target.compared == "classes" and spec.classes is None
        return cls(spec, manifest.input, manifest.target, manifest, labels if by_name else None, file)

    def listed(self, folder: Path) -> ListedFolder:
        """Lists the files of a folder. Raises DataSetError if there are none."""
        content = ListedFolder(folder, [], SkippedTally())
        for part, client in self._parts(folder):
            listed = listing(self._source(part))
            for stray in listed.strays:
                content.skipped.add(stray)
            content.files.extend(
                ListedPicture(unit, client or self._client(unit)) for unit in listed.units.values()
            )
        if not content.files and not tuple(content.skipped):
            raise DataSetError(f"{folder} has no pictures: expected a folder of them for each class")
        return content

    def read(self, folders: Sequence[ListedFolder]) -> tuple[list[FolderSamples], tuple[str, ...]]:
        """The samples of each folder, and the names of the classes. Raises DataSetError if none are left."""
        classes = self._classes([file.unit.label for folder in folders for file in folder.files])
        arrays = [self._arrays(folder, classes) for folder in folders]
        if isinstance(classes, ClassOrder):
            classes = ClassOrder.of(name for each in arrays for name in each["names"].tolist())
        folder_samples = [
            self._samples(folder, each, classes) for folder, each in zip(folders, arrays, strict=True)
        ]
        for folder in folders:
            for skip in folder.skipped:
                log.warning("%s: skipped %s", folder.folder, skip)
        for folder, samples in zip(folders, folder_samples, strict=True):
            if not len(samples.y):
                why = "; ".join(str(skip) for skip in [*folder.skipped][:3])
                raise DataSetError(f"{folder.folder} has no readable samples: {why}")
        if self.target.has_columns:
            return folder_samples, self.target.columns
        if isinstance(classes, ClassOrder):
            return folder_samples, classes.labels
        return folder_samples, () if self.manifest is None else self.manifest.labels

    def _parts(self, folder: Path) -> list[tuple[Path, str]]:
        """The folders that devices would read, and their clients."""
        if self.spec.client_level != 1:
            return [(folder, "")]
        folders = sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))
        if not folders:
            raise DataSetError(f"{folder} has no folders, expected one for each client")
        return [(path, path.name) for path in folders]

    def _client(self, unit: Unit) -> str:
        """The folder at `client_level` that the file lies in, or as a table lists it; empty for none."""
        folders, level = unit.name.split("/")[:-1], self.spec.client_level
        if not level:
            return unit.client
        return folders[level - 1] if 1 < level <= len(folders) else ""

    def _source(self, folder: Path) -> SampleSource:
        spec = self.spec
        source = SampleSource(
            folder, labels=self.file, label_column=spec.label_column, client_column=spec.client_column
        )
        return for_task(source, self.labels, self.target)

    def _classes(self, names: Sequence[str | None]) -> LabelMap | ClassOrder:
        """How classes are numbered: by the bundle's labels, or in the order of their names."""
        class_names = {name for name in names if name is not None}
        if self.labels is None or self.manifest is None:
            return ClassOrder.of(class_names)
        words = class_names and not any(map(str.isdecimal, map(str.strip, class_names)))
        if self.file is None and words and all_numbers(self.manifest.labels):
            order = ClassOrder.of(class_names)
            log.warning(
                "classes are numbered in the order of their names (%s), as the bundle's labels are only "
                "numbers: a device would leave these folders out, without a %s or export --labels",
                ", ".join(f"{name} {number}" for number, name in enumerate(order.labels[:4])),
                FILE,
            )
            return order
        return self.labels.among(class_names)

    def _arrays(self, folder: ListedFolder, classes: LabelMap | ClassOrder) -> dict[str, NDArray[Any]]:
        """The samples of the folder's files with a label of the task, from the cache if they were read."""
        files: list[ListedPicture] = []
        for file in folder.files:
            try:
                if file.unit.label is not None and not self.target.has_columns:
                    classes.number(file.unit.label)
                files.append(file)
            except Refused as error:
                folder.skipped.add(Skip.of(error, file.unit.name))
        if not files:
            return {**_nothing(self.input), "skipped": np.array([], np.str_)}
        entries = [(file.unit.name, file.unit.label, file.client) for file in files]
        columns = (self.spec.label_column, self.spec.client_column)
        settings = ("folder", msgspec.json.encode(self.input), columns, entries)
        key = listing_key((file.unit.path for file in files), *settings)
        arrays = cached(key, lambda: self._decoded(files, folder.folder))
        for line in arrays["skipped"].tolist():
            folder.skipped.add(msgspec.json.decode(line, type=SkippedSamples))
        return arrays

    def _decoded(self, files: Sequence[ListedPicture], folder: Path) -> dict[str, NDArray[Any]]:
        """Reads the files: x, the number of each sample's label in `names`, its client's in `whose`."""
        skipped, names, whose = SkippedTally(), dict[str, int](), dict[str, int]()
        only_bytes = is_picture(self.input) and white(self.input) == BYTE
        only_bytes &= not any(file.unit.path.suffix.lower() in ARRAYS for file in files)
        rows = Rows(self.input.shape, "uint8" if only_bytes else self.input.dtype)
        rows.reserve(len(files))
        label: list[int] = []
        client: list[int] = []
        request = WantedSamples(self.input, self._source(folder))
        for unit, owner in with_progress(files, f"files of {folder}"):
            try:
                for part in unit.read(request):
                    if isinstance(part, Skip):
                        skipped.add(part)
                        continue
                    rows.append(part.x, np.zeros(len(part.x), np.int64))
                    part_labels = [unit.label or ""] * len(part.x) if part.labels is None else part.labels
                    label += [names.setdefault(_text(value), len(names)) for value in part_labels]
                    owners = [owner] * len(part.x) if part.clients is None else part.clients
                    client += [whose.setdefault(name, len(whose)) for name in owners]
            except Refused as error:
                skipped.add(Skip.of(error, unit.name))
        return {
            "x": rows.data.x,
            "label": np.array(label, np.int64),
            "client": np.array(client, np.int64),
            "names": np.array(list(names), np.str_),
            "whose": np.array(list(whose), np.str_),
            "skipped": np.array([msgspec.json.encode(skip).decode() for skip in skipped], np.str_),
        }

    def _samples(
        self, folder: ListedFolder, arrays: dict[str, NDArray[Any]], classes: LabelMap | ClassOrder
    ) -> FolderSamples:
        """The samples whose labels are of the task; the others are skipped."""
        label = np.asarray(arrays["label"])
        names = arrays["names"].tolist()
        targets = [self._target(name, classes) for name in names]
        for number, (name, target) in enumerate(zip(names, targets, strict=True)):
            if isinstance(target, Refused) and (count := int((label == number).sum())):
                folder.skipped.add(SkippedSamples(target.reason, count, (name,)))
        has_target = np.array([not isinstance(target, Refused) for target in targets], bool)
        values = np.array(
            [np.zeros(self.target.shape) if isinstance(target, Refused) else target for target in targets],
            np.float64 if self.target.has_columns else np.int64,
        ).reshape(len(targets), *self.target.shape)
        chosen = has_target[label] if len(label) else np.zeros(0, bool)
        x, label, client = arrays["x"], label[chosen], np.asarray(arrays["client"])[chosen]
        whose = arrays["whose"].tolist()
        order = sorted(name for name in whose if name)
        numbers = np.array([order.index(name) if name else NOBODY for name in whose], np.int64)
        clients = numbers[client] if order else None
        return FolderSamples(x if chosen.all() else x[chosen], values[label], clients)

    def _target(self, name: str, classes: LabelMap | ClassOrder) -> Any:
        """The class number, or the targets (columns,), of a label; or why there is none."""
        try:
            if not self.target.has_columns:
                return classes.number(name)
            values = column_values(name, self.target.columns)
            self.target.prepare(np.array([values]))
            return np.array(values)
        except TensorError as error:
            return Refused("not what the task's loss takes", error)
        except Refused as error:
            return error


def _text(label: object) -> str:
    """A label as a text; numbers of several columns are joined by commas."""
    return ",".join(map(str, label.tolist())) if isinstance(label, np.ndarray) and label.ndim else str(label)


def _nothing(spec: InputSpec) -> dict[str, NDArray[Any]]:
    none = {name: np.empty(0, np.int64) for name in ("label", "client")}
    texts = {name: np.array([], np.str_) for name in ("names", "whose")}
    return {"x": np.empty((0, *spec.shape), np.uint8), **none, **texts}
