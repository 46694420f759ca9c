"""Reads samples from numpy files: .npy (one or many), and .npz with labels."""

from __future__ import annotations

import io
import logging
import math
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec

from .cells import first_of, folded
from .sample_source import SampleSource
from .units import RawSamples, Refused, SampleFormat, TemporarilyRefused, Unit, WantedSamples

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredArray:
    """An array of one sample of the input's shape, or of many (n, ..); a single channel may have no axis."""

    values: NDArray[Any]

    @property
    def form(self) -> str:
        return f"{self.values.dtype} {self.values.shape}"

    def raw(self, spec: InputSpec) -> NDArray[Any]:
        """The samples (n, *shape). Raises Refused for another shape, or values that are not numbers."""
        shapes = [spec.shape, spec.shape[1:]] if spec.shape[:1] == (1,) else [spec.shape]
        values = self.values
        if values.dtype.kind not in "buif":
            raise Refused("x is no array of numbers", f"{values.dtype}")
        if values.shape not in shapes and (values.ndim == 0 or values.shape[1:] not in shapes):
            raise Refused("another shape than the task's input", f"{values.shape}, expected {spec.shape}")
        return values.reshape(-1, *spec.shape)


def decode(data: bytes) -> StoredArray:
    """Reads a .npy file. Raises Refused if it is none, ends too early or holds objects."""
    with refusing_damage("not a .npy file"):
        return StoredArray(_read_array(lambda: io.BytesIO(data), len(data)))


# .npz files hold x (n, *input) and y (n,), class numbers or names; class_names, if any, names the numbers.
# Where targets have columns, y is numbers (n, columns), or (n,) for one; where none are needed, it may be
# absent.

LARGEST_BYTES = 4 << 30
"""Most bytes of the unpacked arrays of a file that are read."""
OF_X = ("x", "data", "features", "inputs", "images", "samples")
OF_Y = ("y", "label", "labels", "target", "targets", "class", "classes")
OF_NAMES = ("class_names", "labels", "label_names", "target_names", "classes", "categories")
OF_CLIENTS = ("groups", "client", "clients")
TRAINING, TESTING = "_train", "_test"


@dataclass(frozen=True)
class ArrayNames:
    """The names of a file's arrays, by what they hold; empty for what it does not have.

    part: what stands behind x and y, such as _train, if the file has several parts.
    """

    x: str
    y: str
    names: str
    clients: str
    part: str = ""

    @property
    def description(self) -> str:
        """What was chosen, for people."""
        return f"samples: {self.x}, labels: {self.y or 'none'}"


def array_names(members: Collection[str], part: str = "", *, labelled: bool = True) -> ArrayNames:
    """Finds the arrays of samples and labels by their usual names, in upper or lower case.

    part: prefers those whose names end with it. labelled: whether labels are needed. Raises Refused if they
    are missing, or if several are possible.
    """
    called: dict[str, list[str]] = {}
    for name in members:
        called.setdefault(folded(name).replace("-", "_"), []).append(name)

    def find(usual: Sequence[str], ending: str) -> str:
        """The only array with such a name; the first name precedes the others."""
        for names in ([usual[0]], usual[1:]):
            matches = [name for word in names for name in _spelt(called, word, ending)]
            if len(matches) > 1 and usual[0] in matches:
                return usual[0]
            if len(matches) > 1:
                raise Refused(f"which array holds {usual[0]}?", f"it has {first_of(sorted(matches), 5)}")
            if matches:
                return matches[0]
        return ""

    x = find(OF_X, part)
    if not x:
        there_are = first_of(sorted(members), 5) or "none"
        raise Refused(f"has no array '{OF_X[0]}{part}'", f"it has {there_are}")
    y = find(OF_Y, part)
    if labelled and not y:
        raise Refused(f"has no array '{OF_Y[0]}{part}'", f"it has {first_of(sorted(members), 5)}")
    names = next((name for word in OF_NAMES for name in called.get(word, ()) if name != y), "")
    clients = find(OF_CLIENTS, part) or find(OF_CLIENTS, "")
    return ArrayNames(x, y, names, clients, part)


def _spelt(called: Mapping[str, list[str]], name: str, part: str) -> list[str]:
    if not part:
        return called.get(name, [])
    word = part.strip("_")
    spelt = (f"{name}_{word}", f"{word}_{name}", f"{name}{word}")
    return [match for spelling in spelt for match in called.get(spelling, ())]


def parts_of(members: Collection[str], *, labelled: bool = True) -> tuple[ArrayNames, ArrayNames | None]:
    """The arrays to train on, and those to evaluate on if the file has both. Raises Refused."""
    try:
        return array_names(members, labelled=labelled), None
    except Refused as error:
        try:
            train = array_names(members, TRAINING, labelled=labelled)
        except Refused as other:
            raise (other if "which" in other.reason else error) from None
    try:
        return train, array_names(members, TESTING, labelled=labelled)
    except Refused as error:
        if "which" in error.reason:
            raise
        return train, None


def labels_of(y: NDArray[Any], count: int, classes: int = 0, names: NDArray[Any] | None = None) -> Any:
    """Class numbers int64 (n,), or names (n,), from y in any usual form; names: those of the numbers.

    y: numbers, also as 1.0, bool or (n, 1); names; or one-hot (n, classes). Raises Refused.
    """
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    class_count = len(names) if names is not None and names.ndim == 1 else classes
    if y.ndim == 2 and y.dtype.kind in "buif" and len(y) and _is_one_hot(y):
        if class_count and y.shape[1] != class_count:
            raise Refused(f"y is one-hot of {y.shape[1]} classes, and there are {class_count}")
        y = y.argmax(axis=1)
    if y.dtype.kind == "S" and y.ndim == 1:
        y = np.array([as_text(name) for name in y.tolist()], np.str_)
    if y.dtype.kind == "f" and y.ndim == 1 and np.isfinite(y).all() and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    if y.dtype.kind == "b":
        y = y.astype(np.int64)
    if y.shape != (count,) or y.dtype.kind not in "iuU":
        raise Refused(
            f"y is {y.dtype} {y.shape}, expected {one_label_each(count)}",
            "one-hot (n, classes), (n, 1), bool and whole numbers as float are taken too",
        )
    if y.dtype.kind == "U":
        return y.tolist()
    if y.dtype.kind == "u" and len(y) and int(y.max()) > LARGEST_NUMBER:
        raise Refused("a class number that is too large", f"{int(y.max())}")
    return y.astype(np.int64) if names is None else _named(y, names)


def one_label_each(count: int) -> str:
    """What y holds, where targets are classes."""
    return f"one integer for each of the {count} samples, or a name"


LARGEST_NUMBER = (1 << 63) - 1


def _is_one_hot(y: NDArray[Any]) -> bool:
    return bool(((y == 0) | (y == 1)).all() and ((y != 0).sum(axis=1) == 1).all())


def _read(unit: Unit, request: WantedSamples) -> Iterator[RawSamples]:
    room = LARGEST_BYTES if request.room_bytes is None else min(LARGEST_BYTES, request.room_bytes)
    source = request.source
    with open_archive(unit.path) as archive:
        train, test = parts_of(archive.names, labelled=not source.unlabelled)
        arrays = archive.read(train.x, train.y, train.names, room_bytes=room)
    x, y, names = arrays[train.x], arrays.get(train.y), arrays.get(train.names)
    notes = _notes(train, test)
    for note in notes:
        log.info("%s: %s", unit.name, note)
    shaped = StoredArray(x).raw(request.input)
    form = f"{x.dtype} {x.shape[1:]}"
    if source.target_columns or y is None:
        if y is not None and y.shape[:1] != (len(shaped),):
            raise Refused(f"y is {y.dtype} {y.shape}, expected targets of each of the {len(shaped)} samples")
        yield RawSamples(shaped, y, form, notes=notes)
        return
    if x.ndim == 0 or len(shaped) != len(x):
        raise Refused(
            "another shape than the task's input",
            f"{x.shape}, expected {('n', *request.input.shape)}".replace("'", ""),
        )
    yield RawSamples(shaped, labels_of(y, len(x), source.classes, names), form, notes=notes)


def _notes(train: ArrayNames, test: ArrayNames | None) -> tuple[str, ...]:
    """What is said of arrays that are not called x and y."""
    notes = [] if (train.x, train.y) in (("x", "y"), ("x", "")) else [train.description]
    return (*notes, f"{test.x} is left out: it is to evaluate on") if test else tuple(notes)


def _stored(unit: Unit, source: SampleSource) -> Iterator[NDArray[Any]]:
    with open_archive(unit.path) as archive:
        train, _ = parts_of(archive.names, labelled=False)
        yield archive.read(train.x)[train.x]


def inputs(path: Path, spec: InputSpec) -> NDArray[Any]:
    """The samples of a .npz file without their labels, (n, *shape), raw. Raises Refused."""
    with open_archive(path) as archive:
        train, _ = parts_of(archive.names, labelled=False)
        return StoredArray(archive.read(train.x)[train.x]).raw(spec)


def _named(y: NDArray[Any], names: NDArray[Any]) -> list[str]:
    if names.ndim != 1:
        raise Refused(f"{NAMES} is no list of names", f"{names.dtype} {names.shape}")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(names):
        raise Refused("a class number without a name", f"{int(y.min())} to {int(y.max())} of {len(names)}")
    listed = [as_text(name) for name in names.tolist()]
    return [listed[number] for number in y.tolist()]


def as_text(name: object) -> str:
    """A name that may be stored as bytes."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


NAMES = OF_NAMES[0]
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How numpy packs arrays; of other methods, a small block may unpack to any size at once."""


class ArrayArchive:
    """The arrays of a .npz file: each name is one member, whose own size counts."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        """Raises Refused if two members have the same name."""
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name in self._members:
                raise Refused("two arrays of one name", f"{name[:40]!r}")
            self._members[name] = info

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all arrays."""
        return tuple(self._members)

    def read(self, *names: str, room_bytes: int = LARGEST_BYTES) -> dict[str, NDArray[Any]]:
        """These arrays, without empty names. Raises Refused if they unpack to more than `room_bytes`."""
        members = {name: self._members[name] for name in names if name}
        size = sum(info.file_size for info in members.values())
        if size > room_bytes:
            raise Refused("unpacks to too much", f"{size / 1e6:.1f} MB, at most {room_bytes / 1e6:.1f} here")
        return {name: self._array(name, info) for name, info in members.items()}

    def _array(self, name: str, info: zipfile.ZipInfo) -> NDArray[Any]:
        if info.compress_type not in METHODS:
            raise Refused("packed by another method than numpy's", f"{name!r}, {info.compress_type}")
        try:
            return _read_array(lambda: self._archive.open(info), info.file_size)
        except Refused as error:
            raise Refused(error.reason, f"{name!r}: {error.detail}") from None


def _read_array(opened: Callable[[], IO[bytes]], size: int) -> NDArray[Any]:
    """The array of a stream of `size` bytes. Raises Refused if its header asks for more, or for objects."""
    with opened() as stream:
        major, _ = version = np.lib.format.read_magic(stream)
        if major > 2:
            raise Refused("an array of another version of numpy's format", f"{version}")
        form = np.lib.format
        shape, _, dtype = (form.read_array_header_1_0 if major == 1 else form.read_array_header_2_0)(stream)
    if dtype.hasobject:
        raise Refused("an array of Python objects, which are not read", f"{dtype}: save numbers or names")
    if dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize > size or any(side < 0 for side in shape):
        raise Refused("ends too early", f"{dtype} {shape} in {size} bytes")
    with opened() as stream:
        values = np.lib.format.read_array(stream, allow_pickle=False)
    if dtype.kind == "U" and values.size:  # Python refuses to make a text of such letters
        letters = np.ascontiguousarray(values.astype(dtype.newbyteorder("="))).view(np.uint32)
        if letters.max() > sys.maxunicode:
            raise Refused("a name with letters that do not exist", f"{dtype} {shape}")
    return values


@contextmanager
def open_archive(path: Path) -> Iterator[ArrayArchive]:
    """Opens a .npz file. Inside, whatever is raised for its content becomes Refused."""
    with refusing_damage("not a .npz file"), zipfile.ZipFile(path) as archive:
        yield ArrayArchive(archive)


@contextmanager
def refusing_damage(reason: str) -> Iterator[None]:
    """Turns anything that is raised for a damaged or foreign file into Refused."""
    try:
        yield
    except Refused:
        raise
    except MemoryError as error:
        raise Refused("unpacks to more than there is memory", error) from None
    except OSError as error:
        raise TemporarilyRefused("cannot be read", error.strerror or error) from None
    except Exception as error:
        raise Refused(reason, str(error)[:200] or type(error).__name__) from None


NPZ = SampleFormat(_read, _stored)
