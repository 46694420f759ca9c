"""Turns labels and targets, as readers give them, into class numbers or columns of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.targets import TargetSpec
from device_runtime.models.errors import TensorError

from .cells import column_values
from .labels import MisnumberedClasses
from .units import RawSamples, Refused, Skip, SkippedTally


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
            return self._columns(labels, name, skipped)
        names = labels.tolist() if isinstance(labels, np.ndarray) else labels
        y, read = np.zeros(count, np.int64), np.zeros(count, bool)
        numbers: dict[Any, int | Refused] = {}
        for i, value in enumerate(names):
            if value not in numbers:
                numbers[value] = self._number(value)
            number = numbers[value]
            if isinstance(number, Refused):
                skipped.add(Skip.of(number, name))
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
        self, labels: Sequence[str] | NDArray[Any], name: str, skipped: SkippedTally
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
                skipped.add(Skip("not what the task's loss takes", f"{name}: {error}"))
            except Refused as error:
                skipped.add(Skip.of(error, name))
        return y, read
