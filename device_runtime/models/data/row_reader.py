"""Turns the cells of a table's row into a sample and its label; cuts recordings of sensors into windows.

The rows of a recording are its time steps. Windows lie within a stretch of consecutive rows with the same
label. A row that cannot be read ends a stretch, so that no window spans a gap. Where targets are numbers,
each row has its own: a window's are those of its last row, or of a row ahead (forecasts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from device_runtime.models.bundles.inputs import InputSpec, WindowInput
from device_runtime.models.errors import TensorError

from .cells import (
    NO_TARGET,
    SAID,
    NumberStyle,
    as_number,
    first_of,
    folded,
    is_number,
    number_style,
    numbers,
    text_cell,
    text_column,
)
from .columns import TableColumns
from .units import RawSamples, Refused, Skip, TokenIds, WantedSamples

NO_NUMBER = "a feature that is no number"
NOT_FINITE = "values are not finite"


@dataclass(frozen=True)
class RowReader:
    """Reads samples and labels from rows, as a task takes them.

    style: how numbers are written. notes: what was decided, for people. has_targets: labels are numbers.
    texts, text: what makes ids of texts, and their column.
    """

    columns: TableColumns
    input: InputSpec
    style: NumberStyle
    notes: tuple[str, ...]
    has_targets: bool
    texts: TokenIds | None = None
    text: int = -1

    @classmethod
    def of(cls, columns: TableColumns, first: Sequence[Sequence[Any]], request: WantedSamples) -> RowReader:
        """The reader for a task; first: the first rows. Raises Refused if no row could fit the task."""
        rows = [row for row in first if len(row) >= columns.width]
        has_targets = bool(request.source.target_columns)
        text, numbered = -1, columns.targets if has_targets else ()
        if request.texts is not None:
            text = text_column(columns.names, rows, columns.features, request.source.text_column)
        else:
            _check_features(columns, request.input, rows)
            numbered = (*columns.features, *numbered)
        style, example = number_style(str(row[i]) for row in rows for i in numbered)
        notes = (SAID[style].format(repr(example)),) if example else ()
        if text >= 0 and len(columns.features) > 1 and not request.source.text_column:
            notes = (*notes, f"text: {columns.name(text)}")
        return cls(columns, request.input, style, notes, has_targets, request.texts, text)

    def values(self, cells: Sequence[Any]) -> NDArray[Any]:
        """The sample, (*shape), or token ids. Raises Refused."""
        if self.texts is not None:
            ids: NDArray[np.int64] = text_cell(cells[self.text]).ids(self.texts)[0]
            return ids
        features = self.columns.features
        try:
            return values_of([cells[column] for column in features], self.input, self.style)
        except Refused as error:
            wrong = next((column for column in features if not self._takes(cells[column])), None)
            if wrong is None or error.reason not in (NO_NUMBER, NOT_FINITE):
                raise
            cell = str(cells[wrong])[:40]
            raise Refused(error.reason, f"{self.columns.name(wrong)}: {cell!r}") from None

    def block(self, rows: Sequence[Sequence[Any]]) -> NDArray[np.float32] | None:
        """The samples of several rows, (n, *shape); None if they are to be read one by one."""
        if not rows or self.texts is not None or self.input.vocabulary is not None or self.style != "point":
            return None
        features = self.columns.features
        first, last = features[0], features[-1] + 1
        if features == tuple(range(first, last)):
            cells = [cell for row in rows for cell in row[first:last]]
        else:
            cells = [row[column] for row in rows for column in features]
        try:
            if "_" in "".join(cells):
                return None
            values = np.fromiter(map(float, cells), np.float64, len(cells))
        except (ValueError, TypeError):
            return None
        with np.errstate(over="ignore"):
            x = values.astype(np.float32).reshape(len(rows), *self.input.shape)
        return x if np.isfinite(x).all() else None

    def label(self, cells: Sequence[Any]) -> str:
        """The label, or the targets joined by commas. Raises Refused."""
        if len(self.columns.targets) == 1 and not self.has_targets:
            return str(cells[self.columns.targets[0]])
        answers = [cells[column] for column in self.columns.targets]
        if not self.has_targets or self.style == "point":
            return ",".join("" if cell is None else str(cell) for cell in answers)
        try:
            return ",".join(map(repr, numbers(answers, self.style).tolist()))
        except (ValueError, TypeError) as error:
            raise Refused(NO_TARGET, str(error)[:80]) from None

    def targets(self, cells: Sequence[Any]) -> str:
        """The targets of a time step joined by commas, as they stand there if one is no number."""
        try:
            return self.label(cells)
        except Refused:
            return ",".join(str(cells[column]) for column in self.columns.targets)

    def _takes(self, cell: Any) -> bool:
        """Whether a cell is a number that is finite in float32."""
        try:
            with np.errstate(over="ignore"):
                return bool(np.isfinite(np.float32(_value(cell, self.input, self.style))))
        except (ValueError, TypeError, OverflowError):
            return False


def _check_features(columns: TableColumns, spec: InputSpec, rows: Sequence[Sequence[Any]]) -> None:
    """Raises Refused for another number of features than the task's, or if one holds words."""
    words = [c for c in columns.features if rows and not any(is_number(row[c]) for row in rows)]
    of_words = (
        f"{columns.name(words[0])} holds words, such as {str(rows[0][words[0]])[:40]!r}" if words else ""
    )
    if (count := len(columns.features)) != prod(spec.shape):
        columns_there = f"{count} ({columns.listed}), expected {spec.shape}"
        why = f"; {of_words}" if of_words else ""
        raise Refused(
            "another number of features than the task's input",
            f"{columns_there}{why}; --feature-columns chooses them, and --label-column the labels",
        )
    if words:
        left = columns.names[words[0]] if columns.names else words[0]
        raise Refused(
            "a column of words among the features",
            f"{of_words}: leave it out by --feature-columns=-{left}, or write it as numbers",
        )


def _value(cell: Any, spec: InputSpec, style: NumberStyle) -> float:
    return int(cell) if spec.vocabulary is not None else as_number(cell, style)


def values_of(cells: Sequence[Any], spec: InputSpec, style: NumberStyle = "point") -> NDArray[Any]:
    """One row's features (*shape), float32 or token ids. Raises Refused."""
    if len(cells) != prod(spec.shape):
        raise Refused(
            "another number of features than the task's input", f"{len(cells)}, expected {spec.shape}"
        )
    try:
        if spec.vocabulary is not None:
            ids = np.array([int(cell) for cell in cells], np.int64).reshape(spec.shape)
            spec.check_ids(ids)
            return ids
        with np.errstate(over="ignore"):
            values = numbers(cells, style).astype(np.float32)
    except TensorError as error:
        raise Refused("not what the task's input takes", error) from None
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused(NO_NUMBER, str(error)[:80]) from None
    if not np.isfinite(values).all():
        raise Refused(NOT_FINITE)
    return values.reshape(spec.shape)


AXES = ("y",)
"""Names of channels that would be names of a column of labels in other tables."""


class TimeStep(NamedTuple):
    """One time step: its label, and the values of all channels, float32 (channels,).

    target: its numbers, joined by commas, where targets have columns; None: labels are of classes. row: its
    number in the file, from 1; 0: unknown.
    """

    label: str
    values: NDArray[Any]
    target: str | None = None
    row: int = 0


@dataclass(frozen=True)
class WindowCutter:
    """Finds the channels of a recording, and cuts its steps into windows (channels, length)."""

    channels: int
    length: int
    window: WindowInput

    @classmethod
    def of(cls, spec: InputSpec) -> WindowCutter | None:
        """The cutter for this input; None if its samples are not windows of recordings."""
        if not isinstance(spec.window, WindowInput):
            return None
        channels, length = spec.shape
        return cls(channels, length, spec.window)

    @property
    def one_step(self) -> InputSpec:
        """The input of a single time step, (channels,)."""
        return InputSpec((self.channels,))

    def other_names(self, names: Sequence[str]) -> list[str]:
        """The names of columns, empty for those of channels, among which the labels are looked for."""
        channels = {*map(folded, self.window.columns or AXES)}
        return ["" if folded(name) in channels else name for name in names]

    def columns(
        self, names: Sequence[str] | None, width: int, labels: Sequence[int] = (), client: int | None = None
    ) -> tuple[int, ...]:
        """The numbers of the columns that are the channels, in their order.

        names: of the columns, None without a header. width: number of columns. labels: the columns of labels
        or targets; a forecast may have its targets among its channels. client: the column of clients. Raises
        Refused if a named column is missing, or if there are more or fewer columns than channels.
        """
        channel_columns = self.window.columns
        if channel_columns and names is not None:
            called = {folded(name): number for number, name in enumerate(names)}
            if missing := [name for name in channel_columns if folded(name) not in called]:
                raise Refused(f"no column {missing[0]!r}", f"there are {first_of(names)}")
            return tuple(called[folded(name)] for name in channel_columns)
        every = tuple(column for column in range(width) if column != client)
        others = tuple(column for column in every if column not in labels)
        if self.window.ahead and len(every) == self.channels:
            return every
        if len(others) != self.channels:
            raise Refused(
                "another number of columns than the task's channels",
                f"{len(others)} besides the labels, expected {self.channels}",
            )
        return others

    def cut(
        self, steps: Iterable[TimeStep | Skip], form: str, name: str, *, labelled: bool = True
    ) -> Iterator[RawSamples | Skip]:
        """The windows of each stretch, (n, channels, length), as views; those of one stretch stay together.

        form: how the steps are stored. name: of the recording. labelled: whether the labels of steps are
        labels of the task. A stretch that is shorter than a window is skipped.
        """
        for label, stretch in groupby(steps, lambda step: None if isinstance(step, Skip) else step.label):
            if label is None:
                yield from (skip for skip in stretch if isinstance(skip, Skip))
                continue
            steps_of = [step for step in stretch if isinstance(step, TimeStep)]
            values = np.stack([step.values for step in steps_of])
            targets = [step.target for step in steps_of if step.target is not None]
            if len(values) < self.length:
                short = f"{name}: {len(values)} rows, expected {self.length}"
                yield Skip("a stretch shorter than a window", short)
                continue
            windows = np.lib.stride_tricks.sliding_window_view(values, self.length, axis=0)
            if targets and len(windows) <= self.window.ahead:
                short = f"{name}: {len(values)} rows, expected {self.length + self.window.ahead}"
                yield Skip("a stretch shorter than a window and its forecast", short)
                continue
            if targets:
                windows = windows[: len(windows) - self.window.ahead]
                targets = targets[self.length - 1 + self.window.ahead :]
            windows = windows[:: self.window.step]
            labels = targets[:: self.window.step] or [label] * len(windows)
            answered = steps_of[self.length - 1 + (self.window.ahead if targets else 0) :: self.window.step]
            rows = [step.row for step in answered]
            yield RawSamples(
                windows, labels if labelled else None, form, together=True, rows=rows if all(rows) else None
            )
