"""Sentences with labels from CSV or TSV files, as token ids; and word vectors for their vocabulary.

Word vectors are read from files such as GloVe's (Pennington et al. 2014): a word and its values in each line.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.text.texts import Texts
from device_runtime.simulation.errors import DataSetError

from .dataset import DataSet, Samples, in_order, split
from .files import existing, read
from .spec import DataSpec

PADDING, UNKNOWN = "<padding>", "<unknown>"
SPECIAL = (PADDING, UNKNOWN)
"""Token ids 0 and 1."""

TOKEN = re.compile(r"[\w']+|[^\w\s]")
TITLES = {"label", "labels", "class", "category", "target", "sentiment"}
DELIMITERS = {".tsv": "\t", ".tab": "\t", ".csv": ","}

Row = list[str]


@dataclass(frozen=True)
class Sentences:
    """Texts and the name of the label of each."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]


def load(spec: DataSpec, seed: int, texts: Texts | None = None) -> DataSet:
    """Loads sentences as token ids int32 (n, length), padded with 0.

    `texts`, of a bundle, makes the ids; without it they number the words of the training samples. `path` is a
    file, to be split unless `test_path` is given; or a folder with one *train file and one *test file. Raises
    DataSetError.
    """
    train, test = _files(spec)
    known = sentences(train, spec)
    if test is None:
        numbers = np.arange(len(known.texts))
        labels = in_order(known.labels)
        both = split(Samples(numbers, _numbered(known, labels, train), labels), spec.test_share, seed)
        trained = [known.texts[i] for i in both.train_x.tolist()]
        vocabulary = () if texts else _vocabulary(trained, spec)
        ids = _inputs(known.texts, vocabulary, spec, texts)
        x, test_x = ids[both.train_x], ids[both.test_x]
        return DataSet(x, both.train_y, test_x, both.test_y, labels, vocabulary=vocabulary)
    asked, labels = sentences(test, spec), in_order(known.labels)
    vocabulary = () if texts else _vocabulary(known.texts, spec)
    x, test_x = (_inputs(some.texts, vocabulary, spec, texts) for some in (known, asked))
    y, test_y = _numbered(known, labels, train), _numbered(asked, labels, test)
    return DataSet(x, y, test_x, test_y, labels, vocabulary=vocabulary)


def tokens(text: str) -> list[str]:
    """Splits a text into words in lower case (with apostrophes) and single punctuation marks."""
    return TOKEN.findall(text.lower())


def _files(spec: DataSpec) -> tuple[Path, Path | None]:
    path = existing(spec)
    if path.is_dir():
        return only(path, "train"), only(path, "test")
    if not spec.test_path:
        return path, None
    test = Path(spec.test_path).expanduser()
    if not test.is_file():
        raise DataSetError(f"{test}: no such file, for test_path")
    return path, test


def only(folder: Path, part: str) -> Path:
    """The only file *PART.tsv or *PART.csv in the folder. Raises DataSetError."""
    files = [file for ending in DELIMITERS for file in sorted(folder.glob(f"*{part}{ending}"))]
    if len(files) != 1:
        listed = ", ".join(file.name for file in files) or "none"
        raise DataSetError(f"{folder}: {listed} of *{part}.tsv or *{part}.csv, expected one")
    return files[0]


def sentences(file: Path, spec: DataSpec) -> Sentences:
    """The rows of one file, without the header. Raises DataSetError.

    The first row is a header if the spec names columns, or if its label cell looks like a column title.
    """
    rows = table_rows(file)
    named = [c for c in (spec.text_column, spec.label_column) if c and not c.isdecimal()]
    try:
        text = _column(spec.text_column, rows[0], 0)
        label = _column(spec.label_column, rows[0], len(rows[0]) - 1)
    except LookupError as error:
        raise DataSetError(f"{file} has no column {error}; its first row is {rows[0]}") from None
    wide = max(text, label) + 1
    for number, row in enumerate(rows, 1):
        if len(row) < wide:
            raise DataSetError(f"{file}, row {number} has {len(row)} columns, expected {wide}")
    if named or _is_name(rows[0][label], {row[label] for row in rows[1:]}):
        rows = rows[1:]
    if not rows:
        raise DataSetError(f"{file} has a header and no rows")
    return Sentences(tuple(row[text] for row in rows), tuple(row[label].strip() for row in rows))


def table_rows(file: Path) -> list[Row]:
    """The rows of a .csv or .tsv file that are not empty, at least one, of several cells.

    Raises DataSetError.
    """
    try:
        text = read(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataSetError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
    delimiter = DELIMITERS.get(file.suffix.lower(), ",")
    plain: dict[str, Any] = {"quoting": csv.QUOTE_NONE} if delimiter == "\t" else {}
    try:
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter, **plain) if row]
    except csv.Error as error:
        raise DataSetError(f"{file}: {error}") from None
    if not rows:
        raise DataSetError(f"{file} is empty")
    if len(rows[0]) < 2:
        raise DataSetError(f"{file} has one column, expected several, divided by {delimiter!r}")
    return rows


def _is_name(first: str, labels: set[str]) -> bool:
    """Whether the first cell of the label column is a header: a common title, or the only non-number."""
    numbers = bool(labels) and all(label.strip().lstrip("-").isdecimal() for label in labels)
    return first.strip().lower() in TITLES or (numbers and not first.strip().lstrip("-").isdecimal())


def _column(wanted: str, first: Row, otherwise: int) -> int:
    """The number of the wanted column; `otherwise` if none is wanted. Raises LookupError."""
    if not wanted:
        return otherwise
    if wanted.isdecimal():
        if int(wanted) >= len(first):
            raise LookupError(wanted)
        return int(wanted)
    if wanted not in first:
        raise LookupError(wanted)
    return first.index(wanted)


def _numbered(some: Sentences, labels: tuple[str, ...], file: Path) -> NDArray[np.int64]:
    numbers = {name: number for number, name in enumerate(labels)}
    if strange := sorted(set(some.labels) - set(labels)):
        raise DataSetError(f"{file} has the label {strange[0]!r}, training has {', '.join(labels[:10])}")
    return np.array([numbers[label] for label in some.labels], np.int64)


def _vocabulary(texts: Iterable[str], spec: DataSpec) -> tuple[str, ...]:
    """The vocabulary: padding, unknown, then the most frequent words (equally frequent ones by alphabet)."""
    counts = Counter(token for text in texts for token in tokens(text))
    known = words(Path(spec.vectors).expanduser()) if spec.vectors else counts
    ranked = sorted((word for word in counts if word in known), key=lambda word: (-counts[word], word))
    return (*SPECIAL, *ranked[: spec.vocabulary - len(SPECIAL)])


def _inputs(
    written: Sequence[str], vocabulary: tuple[str, ...], spec: DataSpec, texts: Texts | None
) -> NDArray[np.int32]:
    if texts is not None:
        return texts.ids(written).astype(np.int32)
    return _ids(written, vocabulary, spec.length)


def _ids(texts: Iterable[str], vocabulary: tuple[str, ...], length: int) -> NDArray[np.int32]:
    texts = tuple(texts)
    numbers = {word: number for number, word in enumerate(vocabulary)}
    ids = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(texts):
        found = [numbers.get(token, 1) for token in tokens(text)[:length]]
        ids[row, : len(found)] = found
    return ids


def words(file: Path) -> frozenset[str]:
    """The words that have a vector in the file. Raises DataSetError."""
    return frozenset(word for word, _ in _lines(file))


def matrix(vocabulary: tuple[str, ...], file: Path) -> NDArray[np.float32]:
    """The vector of each token id, (len(vocabulary), width), for `export --set vectors=FILE.npy`.

    Row 0, padding, is zero. Unknown words, and those that the file does not have, get the mean of the vectors
    found. Raises DataSetError.
    """
    numbers = {word: number for number, word in enumerate(vocabulary)}
    found: dict[int, NDArray[np.float32]] = {}
    for word, values in _lines(file):
        if word in numbers:
            found[numbers[word]] = _vector(values, word, file)
    if not found:
        raise DataSetError(f"{file} has none of the {len(vocabulary)} words")
    widths = {len(vector) for vector in found.values()}
    if len(widths) > 1:
        raise DataSetError(f"{file} has vectors of {' and '.join(map(str, sorted(widths)))} values")
    table = np.tile(np.mean(list(found.values()), axis=0, dtype=np.float32), (len(vocabulary), 1))
    for number, vector in found.items():
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
