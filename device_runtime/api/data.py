"""Data for simulations: `device_runtime.data.digits()`, `.npz(path)`, `.arrays(x, y)` and other sources.

Each function names samples and says how they are divided among the devices of a simulated fleet. Nothing is
read before a simulation begins. A device reads its own files: see `device_runtime.Device`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import numpy as np

from device_runtime.content import explained
from device_runtime.simulation.data import DataSpec, GroupData, files
from device_runtime.simulation.errors import DataSetError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from typing_extensions import Unpack

__all__ = [
    "DataSpec",
    "GroupData",
    "arrays",
    "cifar10",
    "cifar100",
    "digits",
    "fashion_mnist",
    "frame",
    "images",
    "mnist",
    "npz",
    "of_source",
    "recordings",
    "speech_commands",
    "sst2",
    "table",
    "text",
]


class Division(TypedDict, total=False):
    """How samples are chosen and divided among devices; docs/data-sources.md describes each setting.

    partition: iid, dirichlet (the default), dirichlet-by-class, dirichlet-fedml, shards, classes or natural.
    alpha: of dirichlet; the smaller, the more uneven (0.3).
    groups: samples of the fleet's groups, by name; {"weak": {"classes": (7, 8)}}.
    device_test_share: of each device's samples, on which it is tested and does not train (0).
    """

    partition: str
    alpha: float
    classes_per_client: int
    groups_per_client: int
    quantity_sigma: float
    quantity_alpha: float
    samples_per_client: int | None
    min_samples: int
    reuse: bool
    groups: Mapping[str, GroupData | Mapping[str, Any]]
    test_share: float
    device_test_share: float
    classes: Sequence[int] | None
    max_train: int | None
    max_test: int | None
    generic_samples: int
    generic_classes: int


def of_source(source: str, /, **settings: Any) -> DataSpec:
    """The samples of a source by its name, with any settings of the table [data] of docs/data-sources.md.

    Raises DataSetError for an unknown source or setting, and for settings that exclude each other.

    >>> of_source("digits", partition="shards", classes_per_client=2).partition
    'shards'
    """
    fields = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    try:
        return msgspec.convert({"source": source, **msgspec.to_builtins(fields)}, DataSpec)
    except msgspec.ValidationError as error:
        raise DataSetError(explained(error, DataSpec, "data")) from None


def digits(**division: Unpack[Division]) -> DataSpec:
    """1,437 + 360 handwritten digits, uint8 (1, 8, 8) of 0 to 16; they come with scikit-learn.

    >>> digits(alpha=0.1).alpha
    0.1
    """
    return of_source("digits", **division)


def npz(path: str | Path, *, client_column: str = "", **division: Unpack[Division]) -> DataSpec:
    """Arrays of a .npz file, or of a folder of .npy files, which are memory-mapped.

    The arrays are x (n, ...) and y (n,) of class numbers or names, or (n, columns) of targets, of which a
    part is held out (`test_share`), or x_train, y_train, x_test and y_test; if wanted also groups (n,), the
    number or name of each sample's natural client, and labels, the names of the classes or columns.
    client_column: the name of the array of clients, if it is not groups, client or clients.

    >>> npz("mine.npz", partition="iid").path
    'mine.npz'
    """
    return of_source("npz", path=path, client_column=client_column, **division)


def arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    labels: Sequence[str] | None = None,
    client: ArrayLike | None = None,
    **division: Unpack[Division],
) -> DataSpec:
    """Samples in memory: x (n, ...) of any real dtype, as the bundle takes it, and class numbers y (n,).

    y may be names of classes, too. Where the bundle's loss is of columns, y is their numbers, (n, columns) or
    float (n,).

    test: the x and y to evaluate on; None: a random share of the samples is (`test_share`). labels: the
    names of the class numbers, or of the columns. client: integers or names (n,), the natural client of each
    sample, for partition="natural".

    The arrays are kept once, by content, in the cache folder of this user, from where the processes of a
    simulation map them into memory. Raises DataSetError for arrays that do not fit each other, and if the
    cache cannot be written.

    >>> arrays(np.zeros((4, 1, 8, 8)), [0, 1, 0, 1], partition="iid").source
    'npz'
    """
    names = ("x_train", "y_train", "x_test", "y_test") if test is not None else ("x", "y")
    parts = dict(zip(names, map(_array, (x, y, *(test or ()))), strict=True))
    parts |= {} if client is None else {"groups": _array(client)}
    _check(parts)
    if labels is not None and "U" in {parts[name].dtype.kind for name in names[1::2]}:
        raise DataSetError("y are names of classes: leave out labels, or give class numbers")
    parts |= {} if labels is None else {"labels": np.array(labels, np.str_)}
    key = f"arrays-{_digest(parts)}"
    files.cached(key, lambda: parts)
    folder = files.folder() / key
    if not folder.is_dir():
        raise DataSetError(f"the arrays cannot be kept in {folder}: write them with numpy.savez, and use npz")
    return of_source("npz", path=folder, **division)


def _array(values: ArrayLike) -> NDArray[Any]:
    """The values as an array; objects that are all texts become names, as in a column of pandas."""
    array = np.asarray(values)
    texts = array.dtype.kind == "O" and all(isinstance(value, str) for value in array.flat)
    return array.astype(np.str_) if texts else array


def _check(parts: Mapping[str, NDArray[Any]]) -> None:
    """Raises DataSetError unless all are arrays, x of numbers, as many of each for the same samples."""
    for name, array in parts.items():
        kinds, expected = ("biuf", "numbers") if name.startswith("x") else ("biufU", "numbers or names")
        if array.dtype.kind not in kinds or not array.ndim:
            form = f"{array.dtype} of shape {array.shape}"
            raise DataSetError(f"{name} is {form}, expected an array of {expected}")
    of_x = (("x", "y"), ("x", "groups"), ("x_train", "y_train"), ("x_train", "groups"), ("x_test", "y_test"))
    for x, other in of_x:
        if x in parts and other in parts and len(parts[x]) != len(parts[other]):
            raise DataSetError(f"{len(parts[x])} samples in {x} and {len(parts[other])} in {other}")


def mnist(path: str | Path, **division: Unpack[Division]) -> DataSpec:
    """MNIST: the folder of its four IDX files, gzipped or not; uint8 (1, 28, 28).

    >>> mnist("data/mnist").source
    'mnist'
    """
    return of_source("mnist", path=path, **division)


def fashion_mnist(path: str | Path, **division: Unpack[Division]) -> DataSpec:
    """Fashion-MNIST: the folder of its four IDX files, gzipped or not; uint8 (1, 28, 28).

    >>> fashion_mnist("data/fashion").source
    'fashion-mnist'
    """
    return of_source("fashion-mnist", path=path, **division)


def cifar10(path: str | Path, **division: Unpack[Division]) -> DataSpec:
    """CIFAR-10: the folder of its binary version, data_batch_1.bin and so on; uint8 (3, 32, 32).

    >>> cifar10("data/cifar-10-batches-bin", partition="shards").partition
    'shards'
    """
    return of_source("cifar10", path=path, **division)


def cifar100(path: str | Path, *, coarse: bool = False, **division: Unpack[Division]) -> DataSpec:
    """CIFAR-100: the folder of train.bin and test.bin; with `coarse` the classes are the 20 superclasses.

    >>> cifar100("data/cifar-100-binary", coarse=True).coarse
    True
    """
    return of_source("cifar100", path=path, coarse=coarse, **division)


def images(
    path: str | Path,
    *,
    size: int = 32,
    client_level: int = 0,
    label_column: str = "",
    client_column: str = "",
    **division: Unpack[Division],
) -> DataSpec:
    """Pictures in folders named after their classes, as the bundle takes them; the middle part is resized.

    size: pixels of a side where no bundle says it. client_level: the folders of this level are the natural
    clients, for partition="natural"; 1 is the outermost (PATH/CLIENT/CLASS), 2 the next (PATH/CLASS/CLIENT).
    label_column, client_column: of tables that list the files, by name or number; "" is found as on a device.

    >>> images("photos", size=64).size
    64
    """
    columns = {"label_column": label_column, "client_column": client_column}
    return of_source("images", path=path, size=size, client_level=client_level, **columns, **division)


def text(
    path: str | Path,
    *,
    text_column: str = "",
    label_column: str = "",
    client_column: str = "",
    **division: Unpack[Division],
) -> DataSpec:
    """Texts of a .csv, .tsv or .parquet file, as token ids: those of the bundle's tokenizer, if it has one.

    Columns by name or number; by default they are found as on a device (docs/data.md), and the result says
    which was taken.

    >>> text("reviews.tsv", label_column="stars").label_column
    'stars'
    """
    columns = {"text_column": text_column, "label_column": label_column, "client_column": client_column}
    return of_source("text", path=path, **columns, **division)


def frame(
    data: Any,
    *,
    test: Any = None,
    label_column: str | Sequence[str] = "",
    feature_columns: str | Sequence[str] = "",
    client_column: str = "",
    text_column: str = "",
    **division: Unpack[Division],
) -> DataSpec:
    """A DataFrame of pandas, or what has `to_pandas()`: rows of numbers, texts or time steps, with labels.

    It is read as `table` reads a file, or with `text_column` as `text` does: a row whose cells do not fit is
    left out and said, by its number; row 2 is the first of the frame, as in a file with a header. A
    named index is a column too. For a bundle of windows the rows are time steps, in their order, and
    `client_column` says whose recording each is of.

    test: a frame with the samples to evaluate on; None: a random share of the rows, of windows of the
    clients, is (`test_share`). label_column, feature_columns, client_column: as in `table`.

    The frame is kept once, by content, in the cache folder of this user, from where the processes of a
    simulation read it. Raises DataSetError for what is no frame, has no rows, or cannot be kept.

    >>> import pandas as pd
    >>> houses = pd.DataFrame({"rooms": [2, 5], "price": [130.0, 250.0], "city": ["Graz", "Linz"]})
    >>> frame(houses, label_column="price", client_column="city").partition
    'natural'
    """
    columns = _columns(label_column, feature_columns, client_column) | {"text_column": text_column}
    paths = {"path": _kept_frame(data)} | ({} if test is None else {"test_path": _kept_frame(test)})
    return of_source("text" if text_column else "table", **paths, **columns, **division)


def _columns(label: str | Sequence[str], features: str | Sequence[str], client: str) -> dict[str, str]:
    """Columns as a source takes them: names or numbers, several separated by commas."""
    parts = {"label_column": label, "feature_columns": features, "client_column": client}
    return {name: part if isinstance(part, str) else ",".join(map(str, part)) for name, part in parts.items()}


def _kept_frame(data: Any) -> Path:
    """The file of a frame's rows in the cache folder. Raises DataSetError."""
    if not hasattr(data, "to_csv") and hasattr(data, "to_pandas"):
        data = data.to_pandas()
    if not (hasattr(data, "to_csv") and hasattr(data, "columns") and hasattr(data, "reset_index")):
        raise DataSetError(f"{type(data).__name__} is no table: expected a pandas.DataFrame")
    if not len(data):
        raise DataSetError(f"the frame of {', '.join(map(str, data.columns)) or 'no columns'} has no rows")
    if any(name is not None for name in data.index.names):
        data = data.reset_index()
    text = data.to_csv(index=False, lineterminator="\n").encode("utf-8", "surrogatepass")
    place = files.folder() / f"frame-{hashlib.sha256(text).hexdigest()[:32]}.csv"
    try:
        if not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=place.parent, prefix="frame-", suffix=".part", delete=False) as part:
                part.write(text)
            Path(part.name).replace(place)
    except OSError as error:
        raise DataSetError(f"the frame cannot be kept in {place}: {error.strerror}") from None
    return place


def table(
    path: str | Path,
    *,
    label_column: str | Sequence[str] = "",
    feature_columns: str | Sequence[str] = "",
    client_column: str = "",
    **division: Unpack[Division],
) -> DataSpec:
    """A .csv, .tsv or .parquet table of numbers: features, and a column of labels or several of targets.

    label_column: its name or number, or a list of several targets; by default it is found as on a device
    (docs/data.md), and the result says which was taken. feature_columns: a list of names or numbers, or a
    text of them with commas; by default all others. client_column: whose each row is, for
    partition="natural".

    >>> table("houses.csv", label_column=["price", "area"]).label_column
    'price,area'
    """
    columns = _columns(label_column, feature_columns, client_column)
    return of_source("table", path=path, **columns, **division)


def sst2(path: str | Path, **division: Unpack[Division]) -> DataSpec:
    """SST-2, sentences with two sentiments: the folder of its .tsv files, as token ids.

    >>> sst2("data/SST-2").source
    'sst2'
    """
    return of_source("sst2", path=path, **division)


def speech_commands(path: str | Path, *, words: Sequence[str] = (), **division: Unpack[Division]) -> DataSpec:
    """Speech Commands: the folder of its clips, as log-mel features uint8 (1, 61, 40).

    words: the classes; () are the usual ten, unknown and silence. The speakers are the natural clients.

    >>> speech_commands("data/speech", partition="natural", words=("yes", "no")).words
    ('yes', 'no')
    """
    return of_source("speech-commands", path=path, words=words, **division)


def recordings(
    path: str | Path,
    *,
    label_column: str | Sequence[str] = "",
    feature_columns: str | Sequence[str] = "",
    client_column: str = "",
    **division: Unpack[Division],
) -> DataSpec:
    """Recordings of sensors, cut into windows as the task's bundle says.

    path: a folder with a folder for each person, which has what a device reads (LABEL/*.csv, or tables with a
    column of labels or targets); or one .csv, .tsv or .parquet table, in which `client_column` says whose
    each row, a time step, is. The persons are the natural clients, and none is in both parts of the split.
    label_column, feature_columns: as in `table`; by default the channels are those that the bundle names.

    >>> recordings("engines.parquet", client_column="engine", partition="natural").client_column
    'engine'
    """
    columns = _columns(label_column, feature_columns, client_column)
    return of_source("recordings", path=path, **columns, **division)


def _digest(parts: Mapping[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.sha256()
    for name, values in parts.items():
        digest.update(f"{name} {values.dtype} {values.shape};".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()[:32]
