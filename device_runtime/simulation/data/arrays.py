"""Arrays written by numpy: a .npz file, or a folder of .npy files that are memory-mapped.

`load_jpegs` reads JPEG images in one .npz file. Arrays: jpeg_train (all bytes), off_train (n + 1
offsets), y_train, and the same for test.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.extras import extra_needed
from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.data.arrays import ArrayNames, labels_of, one_label_each, open_archive, parts_of
from device_runtime.models.data.cells import first_of
from device_runtime.models.data.labels import LabelMap, NewLabels, SampleTargets
from device_runtime.models.data.sample_source import SampleSource
from device_runtime.models.data.single import not_read
from device_runtime.models.data.table import ENDINGS
from device_runtime.models.data.units import RawSamples, Refused, SkippedTally
from device_runtime.models.errors import DataError
from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet, Samples, finite_samples, split
from .files import SkippedFiles, cached, content_key, existing, with_progress
from .spec import DataSpec
from .tables import look_like_classes

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class _Part:
    """Samples that are trained or evaluated on, and whose they are. notes: what was left out."""

    x: NDArray[Any]
    y: NDArray[Any]
    labels: tuple[str, ...]
    groups: NDArray[np.int64] | None
    notes: tuple[str, ...]


def load(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads x and y, which are then split, or x_train, y_train, x_test, y_test.

    y are class numbers or names in any form that a device reads, or targets in columns. Optional arrays:
    groups, and labels or class_names. Raises DataSetError.
    """
    path = existing(spec)
    reconstructed = bundle is not None and bundle.manifest.target.compared == "input"
    arrays, part, test = _open(path, spec.client_column, labelled=not reconstructed)
    reader = _LabelReader(path, spec, bundle)
    train = reader.part(arrays, part)
    notes = (*([] if (part.x, part.y) in USUAL else [part.description]), *train.notes)
    if test is None:
        samples = Samples(train.x, train.y, train.labels, train.groups)
        data = split(samples, spec.test_share, seed, in_place=True)
        return replace(data, notes=notes)
    other = reader.part(arrays, replace(test, clients="", names=part.names))
    if train.y.ndim != other.y.ndim:
        raise DataSetError(f"{path}: {part.y} is {train.y.shape} and {test.y} {other.y.shape}")
    labels = max(train.labels, other.labels, key=len)
    return DataSet(train.x, train.y, other.x, other.y, labels, train.groups, notes=(*notes, *other.notes))


USUAL = (("x", "y"), ("x_train", "y_train"), ("x", ""))
"""Names of arrays that need not be said."""


def _open(
    path: Path, clients: str, *, labelled: bool
) -> tuple[dict[str, NDArray[Any]], ArrayNames, ArrayNames | None]:
    """The arrays that are needed, and what they hold; those of a folder are mapped.

    clients: the name of the array that says whose each sample is; empty: a usual one. Raises DataSetError.
    """
    if not path.is_dir() and (ending := path.suffix.lower()) != ".npz":
        why = "a table is of source table" if ending in ENDINGS else not_read(ending)
        raise DataSetError(f"{path}: not a .npz file: {why}{EXPECTED}")
    try:
        if path.is_dir():
            files = {file.stem: file for file in sorted(path.glob("*.npy"))}
            part, test = parts_of(files, labelled=labelled)
            part = _with_clients(part, files, clients)
            return {name: mapped(files[name]) for name in _needed(part, test)}, part, test
        with open_archive(path) as archive:
            part, test = parts_of(archive.names, labelled=labelled)
            part = _with_clients(part, archive.names, clients)
            return archive.read(*_needed(part, test)), part, test
    except Refused as error:
        is_clear = any(word in error.reason for word in ("one", "which", "the clients"))
        expected = "" if is_clear else EXPECTED
        raise DataSetError(f"{path}: {error}{expected}") from None


def _with_clients(part: ArrayNames, members: Collection[str], clients: str) -> ArrayNames:
    """The part with the array of clients that is asked for, as NAME or NAME_train. Raises Refused."""
    if not clients:
        return part
    names = [name for name in (clients, f"{clients}{part.part}") if name in members]
    if not names:
        raise Refused(f"no array {clients!r} for the clients", f"it has {first_of(sorted(members))}")
    return replace(part, clients=names[0])


EXPECTED = (
    "; expected x and y, or x_train, y_train, x_test and y_test, in a .npz file or folder of .npy files"
)


def _needed(part: ArrayNames, test: ArrayNames | None) -> Collection[str]:
    names = (part.x, part.y, part.names, part.clients, *((test.x, test.y) if test else ()))
    return {name: None for name in names if name}


def mapped(file: Path) -> NDArray[Any]:
    """The array of a .npy file, mapped into memory. Raises Refused."""
    try:
        return np.asanyarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except Exception as error:
        why = " ".join(str(error).split())[:200]
        raise Refused(f"{file.name} is no .npy file of numbers", why or type(error).__name__) from None


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Reads all arrays by name; those of a folder are memory-mapped. Raises DataSetError."""
    try:
        if path.is_dir():
            return {file.stem: mapped(file) for file in sorted(path.glob("*.npy"))}
        with open_archive(path) as archive:
            return archive.read(*archive.names)
    except Refused as error:
        expected = "a .npz file or a folder of .npy files of numbers"
        raise DataSetError(f"{path} is not {expected} ({error})") from None


@dataclass(frozen=True)
class _LabelReader:
    """Reads the labels or targets of arrays as a device of the bundle does, or without one."""

    path: Path
    spec: DataSpec
    bundle: Bundle | None

    def part(self, arrays: Arrays, part: ArrayNames) -> _Part:
        """The samples whose values are finite and whose labels are known. Raises DataSetError."""
        x, y = arrays[part.x], arrays.get(part.y)
        if not x.ndim or x.dtype.kind not in "buif":
            raise DataSetError(f"{self.path}: {part.x} is {x.dtype} {x.shape}, expected numbers (n, ..)")
        skipped = SkippedTally()
        try:
            numbers, labels, mask = self._labels(y, len(x), arrays.get(part.names), skipped)
        except (Refused, DataError) as error:
            raise DataSetError(f"{self.path}: {part.y}: {error}") from None
        groups = _groups(arrays.get(part.clients), len(x), self.path)
        mask &= (finite := finite_samples(x))
        notes = [f"left out: {skip}" for skip in skipped]
        if count := int((~finite).sum()):
            notes.append(f"left out: values are not finite: {count} of {len(x)} samples")
        if len(x) and not mask.any():
            raise DataSetError(f"{self.path}: no readable samples; {'; '.join(notes)}")
        if mask.all():
            return _Part(x, numbers, labels, groups, ())
        groups = None if groups is None else groups[mask]
        return _Part(x[mask], numbers[mask], labels, groups, tuple(notes))

    def _labels(
        self, y: NDArray[Any] | None, count: int, names: NDArray[Any] | None, skipped: SkippedTally
    ) -> tuple[NDArray[Any], tuple[str, ...], NDArray[np.bool_]]:
        """The targets, the names of the classes or columns, and whether each sample has one."""
        manifest = None if self.bundle is None else self.bundle.manifest
        whole = np.ones(count, bool)
        if y is not None and y.shape[:1] != (count,):
            numbers_asked = manifest is not None and manifest.target.has_columns
            phrase = f"targets of each of the {count} samples" if numbers_asked else one_label_each(count)
            raise Refused(f"y is {y.dtype} {y.shape}, expected {phrase}")
        if manifest is not None and (manifest.target.has_columns or self.spec.classes is None):
            labels = LabelMap.of(SampleSource(self.path), manifest.labels)
            targets = SampleTargets(labels, manifest.target, manifest.target.compared == "input")
            values: Any = y
            if y is not None and not manifest.target.has_columns:
                values = labels_of(y, count, len(labels), names)
            batch = RawSamples(np.empty((count, 0)), values, "")
            numbers, read = targets.of(batch, None, self.path.name, skipped)
            return numbers, manifest.target.columns or manifest.labels, read
        if y is None:
            return np.zeros(count, np.int64), ("normal",), whole
        if _is_columns(y, names):
            columns = y.astype(np.float64).reshape(count, -1)
            return columns, _column_names(names, columns.shape[1]), whole
        values = labels_of(y, count, 0, names)
        if not isinstance(values, list):
            return values, tuple(str(n) for n in range(1 + int(values.max(initial=-1)))), whole
        if names is not None:
            listed = tuple(str(name) for name in names.tolist())
            return labels_of(y, count), listed, whole
        new = NewLabels()
        numbers = np.array([new.number(name) for name in values], np.int64)
        order = sorted(new.names)
        return np.array([order.index(name) for name in new.names], np.int64)[numbers], tuple(order), whole


def _is_columns(y: NDArray[Any], names: NDArray[Any] | None) -> bool:
    """Whether y, of no known task, is of targets in columns: numbers that do not look like classes."""
    if y.ndim == 2 and y.shape[1] > 1 and y.dtype.kind in "buif":
        return not (((y == 0) | (y == 1)).all() and ((y != 0).sum(axis=1) == 1).all())
    if y.dtype.kind != "f" or y.ndim not in (1, 2):
        return False
    values = np.unique(y)
    return not (np.isfinite(values).all() and look_like_classes(values, len(y)))


def _column_names(names: NDArray[Any] | None, count: int) -> tuple[str, ...]:
    if names is not None:
        return tuple(str(name) for name in names.tolist())
    return tuple(str(column) for column in range(count))


def _groups(groups: NDArray[Any] | None, count: int, path: Path) -> NDArray[np.int64] | None:
    """The number of each sample's client; names of clients are numbered in order. Raises DataSetError."""
    if groups is None:
        return None
    if groups.shape != (count,):
        raise DataSetError(f"{path}: {groups.shape} groups for {count} samples")
    if groups.dtype.kind in "iu":
        return groups.astype(np.int64)
    if groups.dtype.kind == "f" and np.isfinite(groups).all() and (groups == np.floor(groups)).all():
        return groups.astype(np.int64)
    if groups.dtype.kind in "US":
        return np.unique(groups, return_inverse=True)[1].astype(np.int64)
    raise DataSetError(f"{path}: groups are {groups.dtype}, expected integers or names (n,)")


def integers(values: NDArray[Any], path: Path, name: str) -> NDArray[np.int64]:
    """Class numbers as int64 (n,). Raises DataSetError for other shapes or dtypes."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise DataSetError(f"{path}: {name} is {values.dtype} {values.shape}, expected integers (n,)")
    return values.astype(np.int64)


def names(arrays: Arrays, labels: tuple[NDArray[Any], ...]) -> tuple[str, ...]:
    """The names of the classes: as stored, or else their numbers up to the largest."""
    for key in ("labels", "class_names"):
        if key in arrays:
            return tuple(str(name) for name in arrays[key].tolist())
    classes = 1 + max((int(y.max()) for y in labels if len(y)), default=-1)
    return tuple(str(label) for label in range(classes))


Images = NDArray[np.uint8]


def load_jpegs(spec: DataSpec, seed: int) -> DataSet:
    """Loads images uint8 (n, 3, height, width); images of another size than the first are skipped.

    They are decoded once and then kept in the user's cache. Raises DataSetError.
    """
    path = existing(spec)
    if not path.is_file():
        raise DataSetError(f"{path} is a folder, expected a .npz file")
    arrays = cached(content_key([path], "jpeg-npz"), lambda: _decoded(path))
    y, test_y = (np.asarray(arrays[f"y_{part}"], np.int64) for part in ("train", "test"))
    return DataSet(arrays["x_train"], y, arrays["x_test"], test_y, names(arrays, (y, test_y)))


def _decoded(path: Path) -> dict[str, NDArray[Any]]:
    stored = read(path)
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        needed = [f"{kind}_{part}" for kind in ("jpeg", "off", "y")]
        if missing := [name for name in needed if name not in stored]:
            raise DataSetError(f"{path} has no {', '.join(missing)}; it has {', '.join(stored)}")
        data, ends, y = (stored[name] for name in needed)
        y, ends = integers(y, path, f"y_{part}"), integers(ends, path, f"off_{part}")
        if len(ends) != len(y) + 1 or (np.diff(ends) < 0).any() or ends[0] < 0 or ends[-1] > len(data):
            raise DataSetError(
                f"{path}: off_{part} are {len(ends)} offsets, expected {len(y) + 1} ascending, "
                f"from 0 to {len(data)}"
            )
        whole = data.tobytes()
        files = [whole[begin:end] for begin, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
        x, good = decoded(files, f"{part} images of {path.name}")
        arrays[f"x_{part}"], arrays[f"y_{part}"] = x, y[good]
    return {**arrays, **{name: stored[name] for name in ("class_names", "labels") if name in stored}}


def decoded(files: list[bytes], what: str) -> tuple[Images, NDArray[np.int64]]:
    """Decodes files to images (n, 3, height, width), and the numbers of the files that could be decoded.

    Raises DataSetError when none could.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataSetError(extra_needed("source jpeg-npz", "images", "PIL")) from None

    skipped = SkippedFiles(what)
    good: list[int] = []
    images: Images | None = None
    for number, file in enumerate(with_progress(files, what)):
        try:
            image = np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).transpose(2, 0, 1)
            if images is None:
                images = np.empty((len(files), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise ValueError(f"{image.shape}, expected {images.shape[1:]} as the first")
        except Exception as error:  # Pillow's decoders let out whatever they meet
            skipped.add(f"number {number}", error)
            continue
        images[len(good)] = image
        good.append(number)
    skipped.report(len(files))
    if images is None:
        raise DataSetError(f"no {what}")
    return images[: len(good)], np.array(good, np.int64)
