"""The source of a device's samples, as `--data` names it; without numpy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from device_runtime.models.errors import DataError

SQLITE = "sqlite:"
DATABASES = (".db", ".sqlite", ".sqlite3")
SHAPES = "a folder of class folders, a .npz or .csv file, a folder of those, or sqlite:FILE?QUERY"


@dataclass(frozen=True)
class SampleSource:
    """A file or a folder with samples.

    query: for a SQLite file.
    labels: a label map, see `labels.LabelMap`.
    label_column: name or number (from 0) of a table's column of labels, or several, separated by commas,
    where targets have columns; empty: see `cells.label_column` and `cells.target_columns`.
    text_column: of texts; empty: see `cells.text_column`.
    feature_columns: names or numbers, separated by commas; empty: all others; see `columns.columns_of`.
    client_column: whose each row is; empty: by a common name, if any.
    task_labels: names that stand for a label of the task, folded; empty if no task is known.
    target_columns: the names of the task's targets, where they have columns.
    classes: the number of the task's classes, 0 if no task is known or it has none.
    unlabelled: whether samples need no label.
    texts: whether the task's samples are texts.
    named: whether the first row of a table certainly has the names of its columns.
    """

    path: Path
    query: str = ""
    labels: Path | None = None
    label_column: str = ""
    text_column: str = ""
    feature_columns: str = ""
    client_column: str = ""
    task_labels: frozenset[str] = frozenset()
    target_columns: tuple[str, ...] = ()
    classes: int = 0
    unlabelled: bool = False
    texts: bool = False
    named: bool = False

    @classmethod
    def of(cls, source: SampleSource | Path | str) -> SampleSource:
        """`sqlite:FILE?SELECT ..`, or a path. Raises DataError for a database without a query."""
        if isinstance(source, SampleSource):
            return source
        text = str(source)
        folder, scheme, rest = text.partition(SQLITE)
        if scheme and folder[-1:] in ("", "/"):  # a path that was made absolute has its folder before it
            file, _, query = rest.partition("?")
            if not file or not query.strip():
                raise DataError(f"{text}: expected sqlite:FILE?QUERY, a query that gives columns and a label")
            return cls(Path(folder) / file, query.strip())
        path = Path(source)
        if path.suffix.lower() in DATABASES:
            raise DataError(
                f"{path} is a database: give sqlite:{path}?QUERY, a query that gives columns and a label"
            )
        return cls(path)

    def check(self) -> SampleSource:
        """This source if it exists and a folder can be listed, without the task. Raises DataError."""
        try:
            exists = self.path.exists()
            if self.path.is_dir():
                next(self.path.iterdir(), None)
        except OSError as error:
            raise DataError(f"{self.path} cannot be read: {error.strerror}") from None
        if not exists:
            raise DataError(f"no data at {self.path}: give {SHAPES}")
        return self

    @property
    def is_empty(self) -> bool:
        """Whether it is a folder with nothing in it."""
        return self.path.is_dir() and next(self.path.iterdir(), None) is None

    def absolute(self) -> SampleSource:
        """The same source with absolute paths."""
        return replace(self, path=self.path.absolute(), labels=self.labels and self.labels.absolute())

    def __str__(self) -> str:
        return str(self.path)
