"""Maps class names on this device to class numbers of the task, and targets to columns of numbers."""

from __future__ import annotations

import copy
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from device_runtime.content import read_toml
from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.errors import DataError, TensorError

from .cells import column_values, first_of, folded
from .sample_source import SampleSource
from .units import RawSamples, Refused, Skip, SkippedTally

FILE = "labels.toml"
"""A label map with this name in the folder of the samples is always used."""
WHOLE = re.compile(r"(-?\d+)\.0*")
FLAGS = {"false": "0", "true": "1"}
OTHERS = "*"
"""In a label map, stands for every name that the map does not list."""


class _Map(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A label map file.

    labels: local name to the task's label; "": samples of this name are skipped.
    aliases: the task's label to local names.
    """

    labels: dict[str, str] = {}
    aliases: dict[str, tuple[str, ...]] = {}


class LabelMap:
    """Maps local names to class numbers: names that are labels of the task, or that a label map lists.

    Case and the encoding of accents are ignored if that is unambiguous. A whole number is a class number of
    the task, unless the task has labels that are numbers.
    """

    def __init__(self, labels: Sequence[str], named: Mapping[str, str] | None = None) -> None:
        """named: local name to the task's label; "": samples of this name are skipped.

        Raises DataError for a label that the task does not have.
        """
        self._labels = tuple(labels)
        exact = {label: number for number, label in enumerate(self._labels)}
        self._exact: dict[str, int | None] = {**exact}
        for name, label in (named or {}).items():
            if label and label not in exact:
                task_labels = first_of(self._labels, 12)
                raise DataError(f"label map: {name!r} is mapped to {label!r}, the task has {task_labels}")
            self._exact[name] = exact[label] if label else None
        self._others = self._exact.pop(OTHERS, -1)
        self._folded = _folded(self._exact)
        self._numbered = not any(label.strip().isdecimal() for label in self._labels)
        self._misnumbered: MisnumberedClasses | None = None

    @classmethod
    def of(cls, source: SampleSource, labels: Sequence[str]) -> LabelMap:
        """The map with the label map file that was given, or is in the samples' folder. Raises DataError."""
        file = source.labels
        try:
            folder = source.path if source.path.is_dir() else source.path.parent
            if file is None and (folder / FILE).is_file():
                file = folder / FILE
        except OSError as error:
            raise DataError(f"{source.path} cannot be read: {error.strerror}") from None
        return cls(labels, {} if file is None else _read(file))

    def among(self, names: Iterable[str]) -> LabelMap:
        """The map for files that have these labels: no class number counts if one is beyond the task's."""
        others = copy.copy(self)
        others._misnumbered = None
        for name in names:
            try:
                self.number(name)
            except MisnumberedClasses as error:
                others._misnumbered = error
                break
            except Refused:
                continue
        return others

    @property
    def are_misnumbered(self) -> bool:
        """Whether class numbers count no more, see `among`."""
        return self._misnumbered is not None

    def __len__(self) -> int:
        """The number of the task's labels."""
        return len(self._labels)

    @property
    def names(self) -> frozenset[str]:
        """All names that stand for a label of the task, folded."""
        numbers = map(str, range(len(self._labels))) if self._numbered else ()
        return frozenset({*self._folded, *numbers})

    def number(self, name: str) -> int:
        """The class number of a name.

        Raises Refused for a name that is unknown, or is to be skipped, and MisnumberedClasses for a number
        beyond the task's classes.
        """
        whole = whole_number(name)
        class_number: int | None = -1
        for text in (name, whole, FLAGS.get(folded(name), whole)):
            for names, key in ((self._exact, text), (self._folded, folded(text))):
                class_number = names.get(key, -1) if class_number == -1 else class_number
        if class_number == -1 and self._numbered:
            number = FLAGS.get(folded(name), whole)
            place = int(number[:9]) if number.isdecimal() else -1
            if place >= len(self._labels) and self._others == -1:
                raise MisnumberedClasses(number, self._labels)
            if place >= 0 and self._misnumbered is not None:
                raise self._misnumbered
            class_number = place if place < len(self._labels) else -1
        if class_number == -1:
            class_number = self._others
        if class_number is None:
            raise Refused(f"label {name[:40]!r} is left out by the label map")
        if class_number == -1:
            raise Refused(f"label {name[:40]!r} is not of the task")
        return class_number


class MisnumberedClasses(Refused):
    """Raised for a class number that a task whose labels are words does not have.

    The numbers may begin at 1, or be those of other classes: none of the file's can be trusted.
    """

    def __init__(self, number: str, labels: Sequence[str]) -> None:
        first, last = labels[0], len(labels) - 1
        super().__init__(
            f"class number {number[:12]}, where the task's are 0 to {last}",
            f"which are {first_of(labels, 4)}; say which is which in {FILE}, as in [labels] 1 = {first!r}",
        )


class NewLabels:
    """Numbers the names of classes as they come, where no task is known."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """All names so far, by number."""
        return tuple(self._numbers)

    def number(self, name: str) -> int:
        """The number of a name. Raises Refused for an empty one."""
        text = whole_number(name)
        if not text:
            raise Refused("label '' is not of the task")
        return self._numbers.setdefault(text, len(self._numbers))


class NewNumbers(NewLabels):
    """As NewLabels; beyond MOST names, the number of a fraction is that of its bits, and takes no memory."""

    def number(self, name: str) -> int:
        """The number of a name; bits are below 0 or from LEAST_BITS. Raises Refused for an empty name."""
        text = whole_number(name)
        if len(self._numbers) >= MOST and text not in self._numbers:
            with suppress(ValueError):
                value = float(text)
                if repr(value) == text and SMALLEST <= abs(value) < inf and not value.is_integer():
                    return int(np.float64(value).view(np.int64))
        return super().number(text)


MOST = 4096
"""Names of new labels that are held as they come, whatever they are."""
LEAST_BITS, SMALLEST = 1 << 52, 2.0**-1022
"""The bits of the smallest fraction that has such a number, and that fraction."""


def whole_number(name: str) -> str:
    """The name without outer spaces, and a whole number without the zeros of 1.0."""
    text = unicodedata.normalize("NFC", name.strip())
    match = WHOLE.fullmatch(text)
    return match[1] if match else text


def _folded(exact: Mapping[str, int | None]) -> dict[str, int | None]:
    """Class numbers by folded name; -1 for a name that is ambiguous when folded."""
    numbers: dict[str, int | None] = {}
    for name, number in exact.items():
        key = folded(name)
        numbers[key] = number if numbers.get(key, number) == number else -1
    return numbers


def _read(file: Path) -> dict[str, str]:
    try:
        fields = msgspec.convert(read_toml(file, DataError), _Map)
    except msgspec.ValidationError as error:
        raise DataError(
            f'{file} is no label map ({error}): expected [labels] NAME = "LABEL", [aliases] LABEL = [NAMES]'
        ) from None
    return {**fields.labels, **{name: label for label, names in fields.aliases.items() for name in names}}


class ClassNumbers(Protocol):
    """Gives the class number of a name; `LabelMap` and `NewLabels` do."""

    def number(self, name: str) -> int: ...


@dataclass(frozen=True)
class SampleTargets:
    """Reads targets for a task. unlabelled: whether samples need none."""

    labels: ClassNumbers
    target: TargetSpec
    unlabelled: bool = False

    def of(
        self, batch: RawSamples, label: str | None, name: str, skipped: SkippedTally
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Class numbers int64 (n,) or raw targets float64 (n, columns), and whether each is there, (n,).

        label: of all samples, where their file has one. name: of the file. Those without a target are added
        to `skipped`; a sample without a label where none is needed is of the first class. Raises Refused for
        all.
        """
        count = len(batch.x)
        if batch.labels is None and label is None and self.unlabelled:
            return np.zeros(count, np.int64), np.ones(count, bool)
        labels = [label or ""] * count if batch.labels is None else batch.labels
        if self.target.has_columns:
            return self._columns(labels, batch, name, skipped)
        names = labels.tolist() if isinstance(labels, np.ndarray) else labels
        y, read = np.zeros(count, np.int64), np.zeros(count, bool)
        numbers: dict[Any, int | Refused] = {}
        for i, value in enumerate(names):
            if value not in numbers:
                numbers[value] = self._number(value)
            number = numbers[value]
            if isinstance(number, Refused):
                skipped.add(Skip.of(number, batch.place(i, name)))
            else:
                y[i], read[i] = number, True
        return y, read

    def _number(self, name: str | int) -> int | Refused:
        """The class number, or why there is none. Raises MisnumberedClasses."""
        try:
            return self.labels.number(str(name))
        except MisnumberedClasses:
            raise
        except Refused as error:
            return error

    def _columns(
        self, labels: Sequence[str] | NDArray[Any], batch: RawSamples, name: str, skipped: SkippedTally
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        y, read = np.zeros((len(labels), *self.target.shape), np.float64), np.zeros(len(labels), bool)
        if isinstance(labels, np.ndarray):
            try:
                self.target.prepare(labels)
                return labels.reshape(y.shape).astype(np.float64), np.ones(len(labels), bool)
            except TensorError:
                pass  # then the samples are looked at one by one
        for i, label in enumerate(labels):
            try:
                values = column_values(label, self.target.columns) if isinstance(label, str) else label
                self.target.prepare(np.array([values]))
                y[i], read[i] = values, True
            except TensorError as error:
                skipped.add(Skip("not what the task's loss takes", f"{batch.place(i, name)}: {error}"))
            except Refused as error:
                skipped.add(Skip.of(error, batch.place(i, name)))
        return y, read
