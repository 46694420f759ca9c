"""Sentences with labels from CSV or TSV files, as token ids; and word vectors for their vocabulary.

Word vectors are read from files such as GloVe's (Pennington et al. 2014): a word and its values in each
line.

Many texts and their token ids are stored compactly: as str objects they would take several times as much.

SST-2 (Socher et al. 2013) has sentences of film reviews, negative (0) or positive (1).
"""

from __future__ import annotations

import os
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.bundle import Bundle
from device_runtime.models.bundles.inputs import Texts
from device_runtime.models.bundles.manifest import Manifest
from device_runtime.models.data.cells import first_of
from device_runtime.models.data.table import ENDINGS
from device_runtime.simulation.errors import DataSetError
from device_runtime.user_account import expanded

from .dataset import DataSet, Samples, in_order, split
from .files import existing
from .spec import DataSpec
from .tables import ClassNames, TableTask, notes

BLOCK = 1024
"""Texts whose ids are made together."""
IN_MEMORY_BYTES = 1 << 20
"""Ids that take more are in a temporary file, which is mapped into memory."""

Ids = NDArray[np.int32]


class TextStore:
    """Texts one behind the other, as UTF-8."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> str:
        return self._text[self._ends[number] : self._ends[number + 1]].decode(errors="surrogatepass")

    def ids(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Adds texts; their ids, which need a vocabulary, are made later: here each one's is its place."""
        first = len(self)
        for text in texts:
            self._text += text.encode(errors="surrogatepass")
            self._ends.append(len(self._text))
        return np.arange(first, len(self))[:, None]


class ChosenTexts:
    """Some texts of a store, by their numbers (n,); iterated, they are made when they are needed."""

    def __init__(self, store: TextStore, numbers: NDArray[np.integer]) -> None:
        self._store, self._numbers = store, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        for block in self.blocks():
            yield from block

    def blocks(self) -> Iterator[list[str]]:
        """The texts, BLOCK together."""
        for first in range(0, len(self), BLOCK):
            yield [self._store[number] for number in self._numbers[first : first + BLOCK].tolist()]

    def at(self, places: NDArray[np.integer]) -> ChosenTexts:
        """The texts at these places."""
        return ChosenTexts(self._store, self._numbers[places])


def ids_of(texts: ChosenTexts, ids: Callable[[Sequence[str]], NDArray[np.integer]]) -> Ids:
    """What `ids` makes of the texts, (n, length); of many, memory-mapped, if the disk has room for it."""
    width = next((ids(block).shape[1] for block in texts.blocks()), 0)
    shape = (len(texts), width)
    if len(texts) * width * np.dtype(np.int32).itemsize > IN_MEMORY_BYTES:
        with suppress(OSError), tempfile.TemporaryFile() as file:
            for block in texts.blocks():
                file.write(ids(block).astype(np.int32).tobytes())
            file.flush()
            return np.memmap(file, np.int32, "c", shape=shape)
    every = np.empty(shape, np.int32)
    first = 0
    for block in texts.blocks():
        every[first : first + len(block)] = ids(block)
        first += len(block)
    return every


PADDING, UNKNOWN = "<padding>", "<unknown>"
SPECIAL = (PADDING, UNKNOWN)
"""Token ids 0 and 1."""

TOKEN = re.compile(r"[\w']+|[^\w\s]")


@dataclass(frozen=True)
class Sentences:
    """Texts, and the class number of each; clients: the number of each one's client, (n,), -1 for none."""

    texts: ChosenTexts
    y: NDArray[Any]
    clients: NDArray[Any] | None
    notes: tuple[str, ...]


def load(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads sentences as token ids int32 (n, length), padded with 0, with the labels of the bundle.

    The bundle's tokenizer makes the ids; without one they number the words of the training samples. `path` is
    a file, to be split unless `test_path` is given; or a folder with one *train file and one *test file.
    Raises DataSetError.
    """
    if bundle is None:
        return read_texts(spec, seed, None, None)
    return read_texts(spec, seed, bundle.texts, bundle.manifest)


def read_texts(spec: DataSpec, seed: int, texts: Texts | None, manifest: Manifest | None) -> DataSet:
    """As `load`, of these parts of a bundle."""
    train, test = _files(spec)
    task = TableTask.of(spec, manifest)
    train_part = sentences(train, task)
    if test is None:
        classes = _classes(task, train, train_part.y)
        places = np.arange(len(train_part.y), dtype=np.int32)
        samples = Samples(places, train_part.y, classes.names, train_part.clients)
        both = split(samples, spec.test_share, seed, in_place=True)
        trained, others = (train_part.texts.at(some) for some in (both.train_x, both.test_x))
        y, test_y = (classes.targets(some) for some in (both.train_y, both.test_y))
        data = replace(both, train_y=y, test_y=test_y, notes=train_part.notes)
    else:
        before = task.labels.names
        test_part = sentences(test, task)
        if task.labels.names != before:
            strange = [name for name in task.labels.names if name not in before]
            names = first_of(in_order(before), 10)
            raise DataSetError(f"{test} has the label {strange[0]!r}, training has {names}")
        classes = _classes(task, train, train_part.y, test_part.y)
        trained, others = train_part.texts, test_part.texts
        y, test_y = (classes.targets(some.y) for some in (train_part, test_part))
        whose = None if train_part.clients is None else train_part.clients.astype(np.int64)
        nothing = np.empty(0)
        data = DataSet(nothing, y, nothing, test_y, classes.names, whose, notes=train_part.notes)
    vocabulary = () if texts else _vocabulary(trained, spec)
    x, test_x = (_inputs(some, vocabulary, spec, texts) for some in (trained, others))
    return replace(data, train_x=x, test_x=test_x, vocabulary=vocabulary)


def _classes(task: TableTask, file: Path, *ys: NDArray[Any]) -> ClassNames:
    """The classes of the texts. Raises DataSetError for numbers as targets."""
    if task.target.has_columns:
        raise DataSetError(f"{file}: a text has one label, and the task's targets are columns of numbers")
    return task.names(*ys, classes=True)


def tokens(text: str) -> list[str]:
    """Splits a text into words in lower case (with apostrophes) and single punctuation marks."""
    return TOKEN.findall(text.lower())


def _files(spec: DataSpec) -> tuple[Path, Path | None]:
    path = existing(spec)
    if path.is_dir():
        return only(path, "train"), only(path, "test")
    if not spec.test_path:
        return path, None
    test = expanded(spec.test_path)
    if not test.is_file():
        raise DataSetError(f"{test}: no such file, for test_path")
    return path, test


def only(folder: Path, part: str) -> Path:
    """The only file *PART.tsv or *PART.csv in the folder. Raises DataSetError."""
    files = [file for ending in ENDINGS for file in sorted(folder.glob(f"*{part}{ending}"))]
    if len(files) != 1:
        listed = ", ".join(file.name for file in files) or "none"
        raise DataSetError(f"{folder}: {listed} of *{part}.tsv or *{part}.csv, expected one")
    return files[0]


def sentences(file: Path, task: TableTask) -> Sentences:
    """The texts of one file with their labels, as a device reads them. Raises DataSetError."""
    store = TextStore()
    samples, columns = task.read(file, store)
    texts = ChosenTexts(store, samples.x[:, 0])
    return Sentences(texts, samples.y, samples.clients, notes(samples, columns, named=True))


def _vocabulary(texts: Iterable[str], spec: DataSpec) -> tuple[str, ...]:
    """The vocabulary: padding, unknown, then the most frequent words (equally frequent ones by alphabet)."""
    counts = Counter(token for text in texts for token in tokens(text))
    lexicon = words(expanded(spec.vectors)) if spec.vectors else counts
    ranked = sorted((word for word in counts if word in lexicon), key=lambda word: (-counts[word], word))
    return (*SPECIAL, *ranked[: spec.vocabulary - len(SPECIAL)])


def _inputs(
    written: ChosenTexts, vocabulary: tuple[str, ...], spec: DataSpec, texts: Texts | None
) -> NDArray[np.int32]:
    if texts is not None:
        return ids_of(written, texts.ids)
    numbers = {word: number for number, word in enumerate(vocabulary)}

    def ids(some: Sequence[str]) -> NDArray[np.int32]:
        rows = np.zeros((len(some), spec.length), np.int32)
        for row, text in zip(rows, some, strict=True):
            row_ids = [numbers.get(token, 1) for token in tokens(text)[: spec.length]]
            row[: len(row_ids)] = row_ids
        return rows

    return ids_of(written, ids)


def words(file: Path) -> frozenset[str]:
    """The words that have a vector in the file. Raises DataSetError."""
    return frozenset(word for word, _ in _lines(file))


def matrix(vocabulary: tuple[str, ...], file: Path) -> NDArray[np.float32]:
    """The vector of each token id, (len(vocabulary), width), for `export --set vectors=FILE.npy`.

    Row 0, padding, is zero. Unknown words, and those that the file does not have, get the mean of the vectors
    found. Raises DataSetError.
    """
    numbers = {word: number for number, word in enumerate(vocabulary)}
    vectors: dict[int, NDArray[np.float32]] = {}
    for word, values in _lines(file):
        if word in numbers:
            vectors[numbers[word]] = _vector(values, word, file)
    if not vectors:
        raise DataSetError(f"{file} has none of the {len(vocabulary)} words")
    widths = {len(vector) for vector in vectors.values()}
    if len(widths) > 1:
        raise DataSetError(f"{file} has vectors of {' and '.join(map(str, sorted(widths)))} values")
    table = np.tile(np.mean(list(vectors.values()), axis=0, dtype=np.float32), (len(vocabulary), 1))
    for number, vector in vectors.items():
        table[number] = vector
    table[0] = 0
    return table


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yields each word and its values; skips a first line of two counts, as word2vec writes it."""
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            for number, line in enumerate(stream):
                word, _, values = line.rstrip("\n").partition(" ")
                if number or values.count(" "):
                    yield word, values
    except OSError as error:
        raise DataSetError(f"{file} cannot be read: {error.strerror}") from None


def _vector(values: str, word: str, file: Path) -> NDArray[np.float32]:
    try:
        return np.array(values.split(), np.float32)
    except ValueError:
        raise DataSetError(f"{file}: the vector of {word!r} has a value that is not a number") from None


ENV = "DEVICE_RUNTIME_DATA"
"""Environment variable with the folder to use when `path` is not given."""
LABELS = ("negative", "positive")


def load_sst2(spec: DataSpec, seed: int, bundle: Bundle | None = None) -> DataSet:
    """Loads SST-2 as the source `text` does.

    A folder has one *train.tsv, and for evaluation *test.tsv or, where that has no labels (as GLUE's),
    *dev.tsv. Raises DataSetError.
    """
    if not spec.path:
        spec = msgspec.structs.replace(spec, path=os.environ.get(ENV, ""))
    path = existing(spec)
    if path.is_dir():
        train, test = only(path, "train"), _labelled(path, spec)
        spec = msgspec.structs.replace(spec, path=str(train), test_path=str(test))
    data = read_texts(spec, seed, None if bundle is None else bundle.texts, None)
    if data.labels != ("0", "1"):
        raise DataSetError(f"{spec.path} has the labels {', '.join(data.labels[:5])}, SST-2 has 0 and 1")
    return replace(data, labels=LABELS)


def _labelled(folder: Path, spec: DataSpec) -> Path:
    for part in ("test", "dev"):
        file = only(folder, part)
        task = TableTask.of(spec, None)
        try:
            sentences(file, task)
        except DataSetError:
            continue
        if {*task.labels.names} <= {"0", "1"}:
            return file
    raise DataSetError(f"{folder}: neither *test.tsv nor *dev.tsv has a column of the labels 0 and 1")
